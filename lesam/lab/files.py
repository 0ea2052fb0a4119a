"""Files and folders that are either whole or absent, whatever happens to the process or the power."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which gets its name when the block ends well; an older one is replaced only then.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     with whole_folder(Path(parent) / "result") as folder:
        ...         _ = (folder / "table.md").write_text("...")
        ...     [path.name for path in Path(parent).rglob("*")]
        ['result', 'table.md']
    """
    temporary, aside = _temporary(path), _temporary(path.with_name(f"{path.name}.old"))
    for leftover in (temporary, aside):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.rglob("*"):
            sync_folder(file) if file.is_dir() else sync_file(file)
        sync_folder(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if path.exists():
        path.rename(aside)
    temporary.rename(path)
    sync_folder(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, waiting while another process has it; a killed owner's lock vanishes with it.

    Systems and file systems that know no such locks give none.
    """
    if os.name == "nt":
        yield
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        yield


def is_temporary(path: Path) -> bool:
    """Whether a name is one that a process writes under; those of other processes are left over from their deaths."""
    return path.name.startswith(".") and path.name.endswith(".tmp") and not path.name.endswith(f".{os.getpid()}.tmp")


def sync_file(path: Path) -> None:
    """Force a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Force a folder's list of names to the disk, where the system has such a thing."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
