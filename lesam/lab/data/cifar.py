"""CIFAR-10 and CIFAR-100 from the official files, in either format, checked before they are read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from lesam.lab.data import cache
from lesam.lab.data.cifar_sources import CIFAR10, CIFAR100, Layout, Source
from lesam.lab.data.download import download as download_file
from lesam.lab.data.splits import Splits, TensorSet

CACHE_VERSION = "1"


def cifar10(root: Path, *, download: bool = True, read_only: bool = False) -> Splits:
    """Load CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 in 10 classes."""
    return load_source(CIFAR10, root, download=download, read_only=read_only)


def cifar100(root: Path, *, labels: str = "fine", download: bool = True, read_only: bool = False) -> Splits:
    """Load CIFAR-100: 50,000 training and 10,000 test images of 32 x 32 in 100 fine or 20 coarse classes."""
    if labels not in ("fine", "coarse"):
        raise ValueError(f"CIFAR-100 has labels 'fine' (100 classes) and 'coarse' (20), got {labels!r}")
    return load_source(CIFAR100, root, coarse=labels == "coarse", download=download, read_only=read_only)


def load_source(
    source: Source, root: Path, *, coarse: bool = False, download: bool = True, read_only: bool = False
) -> Splits:
    """Find, check, decode and cache a data set.

    Extracted folders come first, then archives (read in place), then a download of the first layout. The
    decoded tensors are kept in ``root/.lesam`` until a source file changes. With ``read_only`` nothing is written.

    Raises:
        FileNotFoundError: When nothing is there and nothing could be downloaded; the message shows the
            layouts that would do.
        RuntimeError: When a file is incomplete or altered; the message names it.
    """
    with contextlib.nullcontext() if read_only else _only_one_process(root, source):
        found = _find(source, root)
        if found is None:
            _fetch(source, root, download and not read_only)
            found = _find(source, root)
        if found is None:
            raise FileNotFoundError(_missing(source, root, "the download left no file"))
        layout, files = found
        stored = root / ".lesam" / f"{source.name}.safetensors"
        key = cache.fingerprint(files, CACHE_VERSION)
        tensors = cache.read(stored, key)
        if tensors is None:
            train, test = _decode(source, layout, files)
            tensors = {
                "train.images": train.images,
                "train.labels": train.labels,
                "test.images": test.images,
                "test.labels": test.labels,
            }
            if not read_only:
                cache.write(stored, key, tensors)
        if coarse:
            tensors |= _coarse_labels(source, layout, files, root, read_only=read_only)
    train = TensorSet(tensors["train.images"], tensors["train.labels"])
    test = TensorSet(tensors["test.images"], tensors["test.labels"])
    return Splits(train, test, source.coarse_classes if coarse else source.classes, source.name)


def _coarse_labels(
    source: Source, layout: Layout, files: list[Path], root: Path, *, read_only: bool
) -> dict[str, Tensor]:
    """The coarse labels of the same images, kept beside them."""
    if layout.decode_coarse is None:
        raise ValueError(f"{source.name} has no coarse labels")
    stored, key = root / ".lesam" / f"{source.name}-coarse.safetensors", cache.fingerprint(files, CACHE_VERSION)
    labels = cache.read(stored, key)
    if labels is None:
        decoded = _decode(
            replace(source, classes=source.coarse_classes), replace(layout, decode=layout.decode_coarse), files
        )
        labels = {f"{name}.labels": part.labels for name, part in zip(("train", "test"), decoded, strict=True)}
        if not read_only:
            cache.write(stored, key, labels)
    return labels


@contextlib.contextmanager
def _only_one_process(root: Path, source: Source) -> Iterator[None]:
    """Let the processes of a job take turns: the first downloads and decodes, the others find the cache."""
    try:
        (root / ".lesam").mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / ".lesam" / f"{source.name}.lock") if os.access(root, os.W_OK) else None
    except OSError:
        lock = None  # a read-only folder: nothing will be written, so nobody needs to wait
    with lock or contextlib.nullcontext():
        yield


def _find(source: Source, root: Path) -> tuple[Layout, list[Path]] | None:
    """Return the first layout that is there: all files of a folder, or an archive."""
    for layout in source.layouts:
        if (root / layout.folder).is_dir():
            files = [root / layout.folder / name for name in (*layout.train, *layout.test)]
            for file in files:
                if not file.is_file():
                    raise FileNotFoundError(
                        f"{file} is missing; extract {layout.archive} again, or remove {file.parent}"
                    )
            return layout, files
    for layout in source.layouts:
        if (root / layout.archive).is_file():
            return layout, [root / layout.archive]
    return None


def _fetch(source: Source, root: Path, download: bool) -> None:
    if not download:
        raise FileNotFoundError(_missing(source, root, "download=False"))
    layout = source.layouts[0]
    try:
        download_file(f"{source.url}/{layout.archive}", root / layout.archive, layout.archive_md5)
    except OSError as error:
        raise FileNotFoundError(_missing(source, root, f"the download failed: {error}")) from error


def _missing(source: Source, root: Path, reason: str) -> str:
    lines = [f"{source.name} is not in {root} ({reason}). Put one of these there:"]
    for layout in source.layouts:
        lines.append(f"  {root / layout.folder}/ with {', '.join((*layout.train, *layout.test))}")
        lines.append(f"  {root / layout.archive} (md5 {layout.archive_md5}) from {source.url}/")
    lines.append("or name the folder that holds them with root= or the environment variable LESAM_DATA.")
    return "\n".join(lines)


def _decode(source: Source, layout: Layout, files: list[Path]) -> tuple[TensorSet, TensorSet]:
    """Check and decode all files of a layout; the very bytes that were checked are the ones decoded."""
    packed = files[0].name == layout.archive
    contents = _extract(layout, files[0]) if packed else _read(files)
    parts: dict[str, TensorSet] = {}
    for path, data in contents:
        name = path.rsplit("/", 1)[-1]
        if name in layout.md5:
            _require_md5(path, data, layout.md5[name])
        try:
            parts[name] = layout.decode(data)
        except (ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise RuntimeError(f"{path} is damaged: {error}; {_REMEDY}") from error
    train, test = (_join([parts[name] for name in names]) for names in (layout.train, layout.test))
    for part in (train, test):
        if not bool(((part.labels >= 0) & (part.labels < source.classes)).all()):
            raise RuntimeError(f"{files[0].parent} has labels outside 0..{source.classes - 1}; {_REMEDY}")
    if layout.check is not None and not packed and (problem := layout.check(train, test)) is not None:
        raise RuntimeError(f"{files[0].parent} does not hold {source.name}: {problem}; {_REMEDY}")
    return train, test


_REMEDY = "the file is incomplete or altered: remove it and get it again"


def _read(files: list[Path]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        yield file.as_posix(), file.read_bytes()


def _extract(layout: Layout, archive: Path) -> Iterator[tuple[str, bytes]]:
    data = archive.read_bytes()
    _require_md5(archive.as_posix(), data, layout.archive_md5)
    # Nothing is extracted to disk: the archive may lie in a read-only folder, and names in it mean nothing.
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for name in (*layout.train, *layout.test):
            inside = f"{layout.folder}/{name}"
            member = tar.extractfile(inside) if inside in tar.getnames() else None
            if member is None:
                raise RuntimeError(f"{archive} holds no file {inside}; {_REMEDY}")
            yield f"{archive.as_posix()}/{inside}", member.read()


def _require_md5(path: str, data: bytes, md5: str) -> None:
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != md5:
        raise RuntimeError(f"{path} ({len(data):,} bytes) has md5 {found}, expected {md5}; {_REMEDY}")


def _join(parts: list[TensorSet]) -> TensorSet:
    return TensorSet(torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]))
