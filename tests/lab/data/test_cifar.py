"""CIFAR files in miniature: both formats, archives, damage, hostile pickles, interrupted downloads."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lesam.lab.data import TensorSet, default_root, load
from lesam.lab.data.cifar import load_source
from lesam.lab.data.cifar_formats import decode_binary, decode_pickle
from lesam.lab.data.cifar_sources import CIFAR10, CIFAR100, Layout, Source


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def sample(count: int, seed: int) -> TensorSet:
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=source, dtype=torch.uint8)
    return TensorSet(images, torch.randint(0, 100, (count,), generator=source))


PARTS = {"train_1": sample(5, 1), "train_2": sample(4, 2), "test": sample(3, 3)}


def as_binary(part: TensorSet) -> bytes:
    """Records as the official page describes them: coarse label, fine label, pixels."""
    return b"".join(
        bytes([label // 5, label]) + bytes(image.flatten().tolist())
        for image, label in zip(part.images, part.labels.tolist(), strict=True)
    )


def as_python2_pickle(part: TensorSet) -> bytes:
    """Write the opcodes that Python 2's cPickle wrote for these files (protocol 2, byte strings)."""

    def string(text: bytes) -> bytes:
        if len(text) < 256:
            return b"U" + bytes([len(text)]) + text
        return b"T" + len(text).to_bytes(4, "little") + text

    def integers(values: Tensor) -> bytes:
        return b"](" + b"".join(b"K" + bytes([v]) for v in values.tolist()) + b"e"

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    pixels = bytes(part.images.flatten().tolist())
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    shape = number(len(part)) + number(3072) + b"\x86"
    array = empty + b"(K\x01" + shape + dtype + b"\x89" + string(pixels) + b"tb"
    entries = string(b"data") + array + string(b"fine_labels") + integers(part.labels)
    entries += string(b"coarse_labels") + integers(part.labels // 5)
    return b"\x80\x02}(" + entries + string(b"batch_label") + string(b"training batch 1 of 1") + b"u."


WRITERS = {"binary": as_binary, "python": as_python2_pickle}
DECODERS = {
    "binary": functools.partial(decode_binary, label_bytes=2),
    "python": functools.partial(decode_pickle, label_key=b"fine_labels"),
}
COARSE_DECODERS = {layout.folder.rpartition("-")[2]: layout.decode_coarse for layout in CIFAR100.layouts}


def archive(layout_folder: str, files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{layout_folder}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(stream.getvalue(), mtime=0)  # the same bytes whenever it is made


def contents(kind: str) -> dict[str, bytes]:
    return {name: WRITERS[kind](part) for name, part in PARTS.items()}


def miniature(*kinds: str, url: str = "http://127.0.0.1:9", files: dict[str, bytes] | None = None) -> Source:
    """A data set of twelve images with its own checksums."""
    layouts = []
    for kind in kinds:
        data = files or contents(kind)
        layouts.append(
            Layout(
                folder=f"mini-{kind}",
                train=("train_1", "train_2"),
                test=("test",),
                md5={name: md5(d) for name, d in data.items()},
                archive=f"mini-{kind}.tar.gz",
                archive_md5=md5(archive(f"mini-{kind}", data)),
                decode=DECODERS[kind],
                decode_coarse=COARSE_DECODERS[kind],
            )
        )
    return Source("mini", 100, url, tuple(layouts), coarse_classes=20)


def lay_out(root: Path, kind: str, files: dict[str, bytes] | None = None) -> Path:
    folder = root / f"mini-{kind}"
    folder.mkdir(parents=True)
    for name, data in (files or contents(kind)).items():
        (folder / name).write_bytes(data)
    return folder


def require_sample(splits) -> None:
    assert torch.equal(splits.train.images, torch.cat([PARTS["train_1"].images, PARTS["train_2"].images]))
    assert torch.equal(splits.train.labels, torch.cat([PARTS["train_1"].labels, PARTS["train_2"].labels]))
    assert torch.equal(splits.test.images, PARTS["test"].images)
    assert torch.equal(splits.test.labels, PARTS["test"].labels)
    assert splits.classes == 100
    assert splits.name == "mini"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["binary", "python"])
def test_both_formats_from_folder_and_archive(tmp_path: Path, kind: str, packed: bool) -> None:
    if packed:
        (tmp_path / f"mini-{kind}.tar.gz").write_bytes(archive(f"mini-{kind}", contents(kind)))
    else:
        lay_out(tmp_path, kind)
    source = miniature("binary", "python")
    require_sample(load_source(source, tmp_path))
    require_sample(load_source(source, tmp_path))  # now from the cache


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_coarse_labels_of_the_same_images(tmp_path: Path, kind: str) -> None:
    lay_out(tmp_path, kind)
    fine = load_source(miniature(kind), tmp_path)
    for _ in ("decoded", "from the cache"):
        coarse = load_source(miniature(kind), tmp_path, coarse=True)
        assert coarse.classes == 20
        for ours, theirs in ((coarse.train, fine.train), (coarse.test, fine.test)):
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.labels, theirs.labels // 5)
    require_sample(load_source(miniature(kind), tmp_path))


def test_labels_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'coarse' \(20\), got 'super'"):
        load("cifar100", tmp_path, labels="super")


def test_reading_only_writes_nothing(tmp_path: Path) -> None:
    folder = lay_out(tmp_path, "binary")
    require_sample(load_source(miniature("binary"), tmp_path, read_only=True))
    assert list(tmp_path.iterdir()) == [folder]
    folder.rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="download=False"):
        load_source(miniature("binary"), tmp_path, read_only=True)


def test_the_hand_written_pickle_is_one_that_pickle_reads() -> None:
    numpy_array = pickle.loads(as_python2_pickle(PARTS["test"]), encoding="bytes")[b"data"]
    assert torch.equal(torch.from_numpy(numpy_array).view(-1, 3, 32, 32), PARTS["test"].images)


@pytest.mark.parametrize("damage", ["altered", "truncated", "empty"])
@pytest.mark.parametrize("kind", ["binary", "python"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str, damage: str) -> None:
    victim = lay_out(tmp_path, kind) / "train_2"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes({"altered": bytes(data), "truncated": bytes(data[:-7]), "empty": b""}[damage])
    with pytest.raises(RuntimeError, match=r"train_2 .*md5 .*remove it and get it again"):
        load_source(miniature(kind), tmp_path)
    assert not list((tmp_path / ".lesam").glob("*.safetensors*"))


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    packed = tmp_path / "mini-binary.tar.gz"
    packed.write_bytes(archive("mini-binary", contents("binary"))[:-20])
    with pytest.raises(RuntimeError, match=r"mini-binary\.tar\.gz .*md5"):
        load_source(miniature("binary"), tmp_path)


def test_an_archive_without_a_member_is_named(tmp_path: Path) -> None:
    data = contents("binary")
    del data["test"]
    packed = archive("mini-binary", data)
    (tmp_path / "mini-binary.tar.gz").write_bytes(packed)
    layout = dataclasses.replace(miniature("binary").layouts[0], archive_md5=md5(packed))
    with pytest.raises(RuntimeError, match="holds no file mini-binary/test"):
        load_source(dataclasses.replace(miniature("binary"), layouts=(layout,)), tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (lay_out(tmp_path, "binary") / "test").unlink()
    with pytest.raises(FileNotFoundError, match="mini-binary/test is missing"):
        load_source(miniature("binary"), tmp_path)


def test_content_is_checked_where_no_checksum_is_known(tmp_path: Path) -> None:
    files = contents("binary")
    plain = miniature("binary")
    unchecked = dataclasses.replace(plain.layouts[0], md5={})
    lay_out(tmp_path, "binary", {**files, "test": files["test"][:-1]})
    with pytest.raises(RuntimeError, match=r"test is damaged: .*whole number of records"):
        load_source(dataclasses.replace(plain, layouts=(unchecked,)), tmp_path)
    (tmp_path / "mini-binary" / "test").write_bytes(files["test"])
    suspicious = dataclasses.replace(unchecked, check=lambda train, test: "too few")
    with pytest.raises(RuntimeError, match="does not hold mini: too few"):
        load_source(dataclasses.replace(plain, layouts=(suspicious,)), tmp_path)
    with pytest.raises(RuntimeError, match=r"labels outside 0\.\.9"):
        load_source(dataclasses.replace(plain, layouts=(unchecked,), classes=10), tmp_path)


class Touch:
    """Unpickled by an unrestricted reader, this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("checksum_is_right", [False, True])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, checksum_is_right: bool) -> None:
    trap = tmp_path / "trap"
    hostile = pickle.dumps({"data": Touch(trap)}, protocol=2)
    files = {**contents("python"), "train_1": hostile}
    lay_out(tmp_path, "python", files)
    source = miniature("python", files=files if checksum_is_right else None)
    expected = r"train_1 is damaged.*mkdir.*not allowed" if checksum_is_right else "train_1 .*md5"
    with pytest.raises(RuntimeError, match=expected):
        load_source(source, tmp_path)
    assert not trap.exists()
    pickle.loads(hostile)  # the trap does work where nobody looks
    assert trap.exists()


@pytest.mark.parametrize("name", ["builtins eval", "numpy load", "numpy.core.multiarray scalar", "os system"])
def test_only_what_an_array_needs_can_be_named(name: str) -> None:
    module, attribute = name.split()
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
        decode_pickle(f"c{module}\n{attribute}\n.".encode(), b"labels")


@pytest.mark.parametrize("content", [b"].", b"}.", b"}(U\x04dataK\x01U\x06labels]u."])
def test_a_pickle_of_something_else_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="data"):
        decode_pickle(b"\x80\x02" + content, b"labels")


def test_the_cache_is_used_and_follows_its_source(tmp_path: Path) -> None:
    file = lay_out(tmp_path, "binary") / "test"
    source = miniature("binary")
    load_source(source, tmp_path)
    stat = file.stat()
    file.write_bytes(bytes(stat.st_size))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    require_sample(load_source(source, tmp_path))  # looks unchanged: not read again
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(RuntimeError, match=r"test .*md5"):
        load_source(source, tmp_path)
    file.write_bytes(contents("binary")["test"])
    require_sample(load_source(source, tmp_path))


@pytest.mark.parametrize("damage", ["altered", "truncated", "empty"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    lay_out(tmp_path, "binary")
    source = miniature("binary")
    load_source(source, tmp_path)
    stored = tmp_path / ".lesam" / "mini.safetensors"
    data = bytearray(stored.read_bytes())
    data[-5] ^= 1
    stored.write_bytes({"altered": bytes(data), "truncated": bytes(data[:-7]), "empty": b""}[damage])
    require_sample(load_source(source, tmp_path))
    assert "mini.safetensors is damaged" in caplog.text
    caplog.clear()
    require_sample(load_source(source, tmp_path))
    assert not caplog.text
    assert {f.name for f in stored.parent.iterdir()} <= {"mini.safetensors", "mini.lock"}


class Server(http.server.ThreadingHTTPServer):
    """Serves one file, can cut connections short, and remembers what was asked for."""

    def __init__(self, content: bytes, *, cut_after: list[int] | None = None, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cut_after, self.ranges = content, cut_after or [], ranges
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if asked and self.server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut_after.pop(0)] if self.server.cut_after else body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator:
    running: list[Server] = []

    def start(content: bytes, **settings) -> Server:
        server = Server(content, **settings)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


PACKED = archive("mini-binary", contents("binary"))


def test_what_is_absent_is_downloaded_once(tmp_path: Path, serve) -> None:
    server = serve(PACKED)
    source = miniature("binary", "python", url=server.url)
    require_sample(load_source(source, tmp_path / "new" / "folder"))
    require_sample(load_source(source, tmp_path / "new" / "folder"))
    assert server.asked == [None]
    assert not list(tmp_path.rglob("*.part"))


def test_an_interrupted_download_goes_on_where_it_stopped(tmp_path: Path, serve) -> None:
    server = serve(PACKED, cut_after=[1000, 500])
    require_sample(load_source(miniature("binary", url=server.url), tmp_path))
    assert server.asked == [None, "bytes=1000-", "bytes=1500-"]


def test_a_download_that_fails_keeps_its_part_for_the_next_process(tmp_path: Path, serve) -> None:
    failing = serve(PACKED, cut_after=[100, 100, 100])
    with pytest.raises(FileNotFoundError, match="100 of"):
        load_source(miniature("binary", url=failing.url), tmp_path)
    part = tmp_path / "mini-binary.tar.gz.part"
    assert part.read_bytes() == PACKED[:300]
    assert not (tmp_path / "mini-binary.tar.gz").exists()
    healthy = serve(PACKED)
    require_sample(load_source(miniature("binary", url=healthy.url), tmp_path))
    assert healthy.asked == ["bytes=300-"]
    assert not part.exists()


def test_a_server_without_ranges_starts_again(tmp_path: Path, serve) -> None:
    (tmp_path / "mini-binary.tar.gz.part").write_bytes(PACKED[:100])
    server = serve(PACKED, ranges=False)
    require_sample(load_source(miniature("binary", url=server.url), tmp_path))
    assert server.asked == ["bytes=100-"]  # one request: what it sent replaced the part


@pytest.mark.parametrize("part", [b"some other file", PACKED, PACKED + b"too much"])
def test_a_foreign_or_complete_part_does_no_harm(tmp_path: Path, serve, part: bytes) -> None:
    (tmp_path / "mini-binary.tar.gz.part").write_bytes(part)
    server = serve(PACKED)
    require_sample(load_source(miniature("binary", url=server.url), tmp_path))


def test_a_wrong_file_on_the_server_is_refused_and_thrown_away(tmp_path: Path, serve) -> None:
    server = serve(PACKED[:-1] + b"?")
    with pytest.raises(RuntimeError, match=r"has md5 .* expected"):
        load_source(miniature("binary", url=server.url), tmp_path)
    assert not list(tmp_path.glob("mini*"))


@pytest.mark.parametrize("download", [False, True])
def test_without_files_and_network_the_error_shows_the_layout(tmp_path: Path, download: bool) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load_source(miniature("binary", "python"), tmp_path, download=download)
    message = str(caught.value)
    for expected in (
        f"{tmp_path}/mini-binary/ with train_1, train_2, test",
        f"{tmp_path}/mini-python/ with",
        f"{tmp_path}/mini-binary.tar.gz (md5 {md5(PACKED)})",
        "LESAM_DATA",
        "download=False" if not download else "127.0.0.1",
    ):
        assert expected in message


@pytest.mark.parametrize("source", [CIFAR10, CIFAR100])
def test_the_official_tables_are_torchvisions(source: Source) -> None:
    from torchvision import datasets

    peer = {10: datasets.CIFAR10, 100: datasets.CIFAR100}[source.classes]
    python = source.layouts[1]
    assert python.folder == peer.base_folder
    assert (python.archive, python.archive_md5) == (peer.filename, peer.tgz_md5)
    assert list(python.train) == [name for name, _ in peer.train_list]
    assert list(python.test) == [name for name, _ in peer.test_list]
    assert dict(python.md5) == dict(peer.train_list + peer.test_list)


def test_files_without_a_published_checksum_have_a_check_of_their_content() -> None:
    for layout in (*CIFAR10.layouts, *CIFAR100.layouts):
        assert set(layout.md5) == {*layout.train, *layout.test} or layout.check is not None


def test_the_content_check_of_cifar10_knows_its_classes_labels_and_means() -> None:
    check = CIFAR10.layouts[0].check

    def made(total: int, first: list[int], levels: list[float]) -> TensorSet:
        labels = torch.arange(10).repeat(total // 10)
        for position, label in enumerate(first):  # swap, so that the classes stay balanced
            other = int((labels[10:] == label).nonzero()[position]) + 10
            labels[other], labels[position] = labels[position].clone(), label
        level = torch.tensor(levels).view(1, 3, 1, 1) * 255
        # A share of the images is one level brighter, which gives the fraction of the mean.
        share = torch.arange(total).view(-1, 1, 1, 1) / total < level.frac()
        return TensorSet((level.floor() + share).to(torch.uint8).repeat(1, 1, 32, 32), labels)

    means = [0.49140, 0.48216, 0.44653]
    train = made(50_000, [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], means)
    test = made(10_000, [3, 8, 8, 0, 6, 6, 1, 6, 3, 1], means)
    assert check(train, test) is None
    assert "begin with" in check(made(50_000, [], means), test)
    assert "begin with" in check(train, made(10_000, [], means))
    assert "of each class" in check(train.subset(torch.arange(49_999)), test)
    darker = TensorSet(train.images - 1, train.labels)
    assert "means" in check(darker, test)


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LESAM_DATA", str(tmp_path))
    assert default_root() == tmp_path
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load("cifar100", download=False)
    monkeypatch.delenv("LESAM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "cache" / "lesam" / "data"
