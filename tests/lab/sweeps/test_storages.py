"""Where studies may lie, and what is said about where they may not."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from lesam.lab.cli import main
from lesam.lab.sweeps.storage import open_storage
from tests.lab.sweeps.searching import free_port, opened


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("foo://x", r"it is one of sqlite:///FILE, journal:///FILE, grpc://HOST:PORT or postgresql://"),
        ("study.sqlite3", r"it is one of sqlite:///FILE"),
        ("mysql://me@db/x", r"it is one of sqlite:///FILE"),
        ("sqlite://", r"it is written sqlite:///FILE"),
        ("sqlite:///{tmp}", r"is a folder; name a file in it"),
        ("journal://{tmp}/study", r"there is no folder .*; a path from the root has four slashes: journal:////"),
        ("journal:///{tmp}/none/study", r"there is no folder .*/none$"),
        ("sqlite:///{tmp}/none/study", r"there is no folder .*/none$"),
        ("journal:///{tmp}/words", r"is no journal of Optuna; name another file"),
        ("sqlite:///{tmp}/words", r"file is not a database"),
        ("grpc://localhost", r"it is written grpc://HOST:PORT"),
        ("grpc://localhost:many", r"it is written grpc://HOST:PORT"),
        ("grpc://127.0.0.1:{port}", r"no server answers there; start one with optuna\.storages\.run_grpc_proxy_server"),
        ("postgresql://me:secret@127.0.0.1:{port}/search", r"connection .*failed"),
        ("postgresql://127.0.0.1:many/search", r"many"),
    ],
)
def test_a_storage_that_cannot_be_used_is_refused_in_a_sentence(
    url: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lesam.lab.sweeps.storage.SECONDS_TO_ANSWER", 1)
    (tmp_path / "words").write_text("not a study, and not one either in its second\nline\n" * 100)
    given = url.format(tmp=tmp_path, port=free_port())
    with pytest.raises(ValueError, match=why) as caught:
        open_storage(given)
    sentence = str(caught.value)
    assert sentence.startswith(f"--storage {given.replace('secret', '***')} cannot be used: ")
    assert "\n" not in sentence
    assert "secret" not in sentence


def test_the_command_refuses_it_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    asked = ["sweep", "digits", "--search", "optimizer.sigma=0.1:0.2", "--set", "data.options.validation=0.1"]
    assert main([*asked, "--storage", "foo://x", "--runs", str(runs)]) == 2
    assert capsys.readouterr().err.startswith("lesam: --storage foo://x cannot be used: it is one of sqlite:///FILE")
    assert not runs.exists()


def test_a_file_of_sqlite_belongs_to_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, journal = f"sqlite:///{tmp_path / 'study.sqlite3'}", f"journal:///{tmp_path / 'study.journal'}"
    opened(file).ask()
    opened(journal).ask()
    monkeypatch.setattr(platform, "node", lambda: "another-machine")
    with pytest.raises(ValueError, match=r"this is another-machine: .*; use --storage journal:///FILE .*, grpc://"):
        opened(file)
    assert len(opened(journal).trials) == 1
    monkeypatch.undo()
    assert len(opened(file).trials) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_that_open_a_new_database_at_once_all_can(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'new.sqlite3'}"
    if kind == "postgresql":
        server = request.getfixturevalue("postgresql")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("CREATE DATABASE new_one")
        url = f"{server.rpartition('/')[0]}/new_one"
    with ThreadPoolExecutor(6) as threads:
        opened = list(threads.map(open_storage, [url] * 6))
    assert len({id(storage) for storage in opened}) == 6
