"""`lesam watch` over real sockets: one page, for this machine, that nobody can change and that follows its runs."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lesam.lab.cli import main
from lesam.lab.report.live import folder as live
from lesam.lab.report.live.folder import WatchedFolder
from lesam.lab.report.live.server import PageServer
from tests.lab.report.page.folders import finished
from tests.lab.running import smoke

SECRET = "root:x:0:0:secret"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(live, "LOOK_AGAIN", 0.0)  # every question is a look at the folder
    (tmp_path / "outside.txt").write_text(SECRET)
    for method in ("sgd", "sam"):
        finished(smoke("digits", method=method), tmp_path / "runs" / method, [0.5, 0.75])
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path) -> Iterator[PageServer]:
    with PageServer(WatchedFolder(runs)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: PageServer, path: str = "/content", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def data(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    content: dict[str, object] = json.loads(found[1])
    return content


def test_the_page_and_its_content_are_served_and_nothing_else(server: PageServer) -> None:
    status, headers, text = ask(server, "/")
    assert status == 200
    assert text.startswith("<!doctype html>")
    assert "data-refresh" in text
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "connect-src 'self'" in headers["content-security-policy"]
    assert "unsafe-inline" not in headers["content-security-policy"].partition("script-src")[2].partition(";")[0]
    assert "access-control-allow-origin" not in headers
    assert [group["name"] for group in data(ask(server)[2])["groups"]] == ["SGD", "SAM"]  # type: ignore[attr-defined]
    assert ask(server, "/", "HEAD")[::2] == (200, "")


@pytest.mark.parametrize(
    "path",
    [
        "/../outside.txt",
        "/..%2foutside.txt",
        "/%2e%2e/outside.txt",
        "//etc/passwd",
        "/sam/config.json",
        "/content/../../outside.txt",
        "http://127.0.0.1/outside.txt",
        "/%00",
    ],
)
def test_no_path_leads_to_a_file(path: str, server: PageServer) -> None:
    status, _, text = ask(server, path)
    assert status == 404
    assert SECRET not in text
    assert "outside" not in text  # nor is it repeated


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", ""]
)
def test_a_name_that_somebody_pointed_here_gets_no_answer(host: str, server: PageServer) -> None:
    status, _, text = ask(server, Host=host)
    assert status == 403
    assert "SGD" not in text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8765", "LOCALHOST", "[::1]:9"])
def test_this_machine_under_its_own_names_does(host: str, server: PageServer) -> None:
    assert ask(server, Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method: str, server: PageServer, runs: Path) -> None:
    before = sorted(path for path in runs.rglob("*"))
    status, headers, _ = ask(server, "/", method, Content_Length="3")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert sorted(path for path in runs.rglob("*")) == before


def test_an_unchanged_folder_is_not_sent_again_and_a_new_epoch_is(server: PageServer, runs: Path) -> None:
    _, headers, _ = ask(server)
    assert ask(server, If_None_Match=headers["etag"])[::2] == (304, "")
    folder = finished(replace(smoke("digits", method="lesam"), seed=4), runs / "new", [0.9])
    status, fresh, text = ask(server, If_None_Match=headers["etag"])
    assert status == 200
    assert "LE-SAM" in text
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 1, "step": 20, "test_acc')  # a row that is being written
    assert ask(server, If_None_Match=fresh["etag"])[0] in (200, 304)
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('uracy": 0.95}\n')
    (run,) = [
        row
        for section in data(ask(server, If_None_Match=fresh["etag"])[2])["sections"]  # type: ignore[attr-defined]
        for table in section["tables"]
        if table["id"] == "runs"
        for row in table["rows"]
        if row[0]["text"] == "new"
    ]
    assert run[4]["value"] == 2  # epochs


@pytest.mark.parametrize("file", ["config.json", "summary.json", "metrics.jsonl", "environment.json"])
@pytest.mark.parametrize("content", ["", "{", "null", "[]", '{"epoch": {}}\n{"epoch": 1}\n', "\x00\xff"])
def test_damaged_folders_are_survived_and_the_others_shown(
    file: str, content: str, server: PageServer, runs: Path
) -> None:
    (runs / "sam" / file).write_text(content)
    status, _, text = ask(server)
    assert status == 200
    assert "SGD" in [group["name"] for group in data(text)["groups"]]  # type: ignore[attr-defined]


NESTED = "[" * 100_000


def damage(run: Path, how: str) -> str:
    """Spoil something of a run in one of many ways; gives what the page has to name."""
    row = {"epoch": 0, "step": 10, "passes": 2.0, "seconds": 3.0, "test_accuracy": 0.5}
    if how == "name":
        run.rename(Path(os.fsdecode(os.fsencode(run.parent) + b"/sam-\xff")))
        return ""
    if how == "surrogate":
        (run / "environment.json").write_text('[{"command": "\\ud800", "hostname": "\\udfff"}]')
        return ""
    if how in ("config.json", "summary.json", "metrics.jsonl"):
        (run / how).write_text(f'{{"epoch": {NESTED}\n{json.dumps(row)}\n')
        return how
    if how in ("attacks", "corruptions"):
        record(run, how, samples=[1, 2])
        return "0123456789.json"
    if how == "nested attack":
        record(run, "attacks").write_text(NESTED)
        return "0123456789.json"
    if how.startswith("link "):
        name = how.removeprefix("link ")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(run / name)
        return name if name != "flatness" else ""
    odd = {
        "long epoch": {"epoch": int("9" * 400)},
        "negative epoch": {"epoch": -1},
        "accuracy": {"test_accuracy": 1e308},
    }
    (run / "summary.json").unlink()
    (run / "metrics.jsonl").write_text(json.dumps(row | odd[how]) + "\n")
    return "metrics.jsonl"


@pytest.mark.parametrize(
    "how",
    [
        *(
            "name",
            "surrogate",
            "config.json",
            "summary.json",
            "metrics.jsonl",
            "attacks",
            "corruptions",
            "nested attack",
        ),
        *("link config.json", "link metrics.jsonl", "link flatness", "long epoch", "negative epoch", "accuracy"),
    ],
)
def test_one_damaged_run_is_named_and_takes_no_other_away(
    how: str, server: PageServer, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = damage(runs / "sam", how)
    status, _, text = ask(server)
    assert status == 200
    assert "SGD" in [group["name"] for group in data(text)["groups"]]  # type: ignore[attr-defined]
    assert any(named in words for words in data(text)["problems"]) or not named  # type: ignore[attr-defined]
    assert ask(server, "/")[0] == 200
    assert main(["report", str(runs), "-o", str(tmp_path / "report.html")]) == 0
    assert "SGD" in capsys.readouterr().out
    assert named in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("value", [1e308, 2.0, -0.5])
def test_an_accuracy_that_is_no_share_is_a_damaged_summary(value: float, server: PageServer, runs: Path) -> None:
    summary = json.loads((runs / "sam" / "summary.json").read_text())
    summary["last"]["test_accuracy"] = value
    (runs / "sam" / "summary.json").write_text(json.dumps(summary))
    found = data(ask(server)[2])
    assert [group["name"] for group in found["groups"]] == ["SGD"]  # type: ignore[attr-defined]
    assert any("summary.json" in words for words in found["problems"])  # type: ignore[attr-defined]


def test_losses_too_large_to_be_averaged_are_survived(server: PageServer, runs: Path) -> None:
    """A run that diverges may well end so: it is no damage."""
    for seed in (1, 2):
        run = finished(replace(smoke("digits", method="sam"), seed=seed), runs / f"sam{seed}", [0.5])
        rows = [{**row, "train_loss": 1.7e308} for row in run.metrics()]
        (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = data(ask(server)[2])
    assert [group["name"] for group in found["groups"]] == ["SGD", "SAM"]  # type: ignore[attr-defined]
    assert found["problems"] == []


def test_a_link_to_a_large_folder_elsewhere_is_not_walked(server: PageServer, runs: Path, tmp_path: Path) -> None:
    for seed in range(3):
        finished(smoke("digits", method="lesam"), tmp_path / "elsewhere" / SECRET / f"run{seed}", [0.5])
    (runs / "link").symlink_to(tmp_path / "elsewhere")
    (runs / "again").symlink_to(runs / "sam")  # stays in the folder
    found = data(ask(server)[2])
    assert SECRET not in json.dumps(found)
    about = [words for words in found["problems"] if "leads out" in words]  # type: ignore[attr-defined]
    assert about == [f"{runs / 'link'} leads out of the watched folder and is left out"]
    assert [group["name"] for group in found["groups"]] == ["SGD", "SAM"]  # type: ignore[attr-defined]


def test_a_browser_that_leaves_while_it_is_answered_is_nobodys_trouble(
    server: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            browser.recv(10)
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
    assert ask(server)[0] == 200
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(30)
    assert capfd.readouterr().err == ""


def test_a_folder_that_loses_all_its_runs_or_has_none_yet_is_survived(server: PageServer, runs: Path) -> None:
    for path in runs.iterdir():
        shutil.rmtree(path)
    status, _, text = ask(server)
    assert status == 200
    assert "no run folders below" in text
    runs.rmdir()
    assert ask(server)[0] == 200


def record(run: Path, room: str, name: str = "0123456789.json", **asked: object) -> Path:
    """An attack on a run of ten images, or corrupted ones, as the commands leave it in its folder."""
    attack = {"norm": "linf", "eps": 1 / 255, "step_size": 0.001, "steps": 10, "restarts": 1, "keep": "last"}
    settings = {"attack": attack} if room == "attacks" else {"corruptions": {"brightness": [1, 2]}}
    result = {"attacked": 0.25} if room == "attacks" else {"corrupted": {"brightness": [0.25, 0.25]}}
    whole = {
        "settings": {**settings, "samples": 10, "checkpoint": {"epoch": 2, "step": 20}, **asked},
        "result": {"clean": 0.5, **result},
    }
    (run / room).mkdir(parents=True, exist_ok=True)
    (run / room / name).write_text(json.dumps(whole))
    return run / room / name


def chart_ids(text: str) -> list[str]:
    return [chart["id"] for section in data(text)["sections"] for chart in section["charts"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("room", ["attacks", "corruptions"])
def test_a_new_answer_appears(room: str, server: PageServer, runs: Path) -> None:
    _, headers, before = ask(server)
    record(runs / "sam", room)
    status, _, text = ask(server, If_None_Match=headers["etag"])
    assert status == 200
    assert len(chart_ids(text)) == len(chart_ids(before)) + 1


@pytest.mark.parametrize("differing", ["samples", "split", "seed", "batch_size", "final_norm", "attack"])
def test_a_figure_keeps_its_name_when_another_attack_comes_before_it(
    differing: str, server: PageServer, runs: Path
) -> None:
    record(runs / "sam", "attacks", "b.json", split="test", seed=0)
    (name,) = (id for id in chart_ids(ask(server)[2]) if id.startswith("attack"))
    attack = {"norm": "linf", "eps": 1 / 255, "step_size": 0.002, "steps": 10, "restarts": 1, "keep": "last"}
    other = {"attack": attack} if differing == "attack" else {differing: 3}
    record(runs / "sam", "attacks", "a.json", **{"split": "test", "seed": 0} | other)
    found = data(ask(server)[2])
    titles = {
        chart["id"]: chart["title"]
        for section in found["sections"]  # type: ignore[attr-defined]
        for chart in section["charts"]
        if chart["id"].startswith("attack")
    }
    assert len(titles) == len(set(titles.values())) == 2
    assert list(titles)[1] == name


@pytest.mark.parametrize("room", ["attacks", "corruptions"])
@pytest.mark.parametrize("whole", [True, False], ids=["room", "file"])
def test_answers_elsewhere_are_not_shown(
    room: str, whole: bool, server: PageServer, runs: Path, tmp_path: Path
) -> None:
    before = chart_ids(ask(server)[2])
    file = record(tmp_path / "elsewhere", room)
    if whole:
        (runs / "sam" / room).symlink_to(file.parent)
    else:
        (runs / "sam" / room).mkdir()
        (runs / "sam" / room / file.name).symlink_to(file)
    _, _, text = ask(server)
    assert set(chart_ids(text)) <= set(before)
    assert "leads out of the watched folder" in text


@pytest.mark.parametrize("link", ["sam", "sam/metrics.jsonl", "sam/attacks/0123456789.json"])
def test_a_link_out_of_the_folder_is_not_followed(link: str, server: PageServer, runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "outside.txt"
    if link == "sam":
        target = finished(smoke("digits", method="lesam"), tmp_path / SECRET, [0.5]).path
        shutil.rmtree(runs / "sam")
    (runs / link).parent.mkdir(exist_ok=True)
    (runs / link).unlink(missing_ok=True)
    (runs / link).symlink_to(target)
    status, _, text = ask(server)
    assert status == 200
    assert SECRET not in text
    assert "leads out of the watched folder" in text


def test_a_taken_port_is_a_sentence(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["watch", str(runs), "--port", str(other.getsockname()[1])]) == 2
    assert "is taken" in capsys.readouterr().err
    assert main(["watch", str(runs / "nothing")]) == 2
    assert "is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["99999", "65536", "-1"])
def test_a_port_that_does_not_exist_is_a_sentence(port: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(runs), f"--port={port}"]) == 2
    assert f"port {port} does not exist" in capsys.readouterr().err


def _deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(runs: Path, ended_by: signal.Signals) -> None:
    """Started as scripts start a command in the background: with Ctrl-C ignored."""
    command = [sys.executable, "-m", "lesam", "watch", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_deaf) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/content")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(ended_by)
        assert process.wait(60) == 0
