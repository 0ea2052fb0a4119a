"""Where a study lies: an SQLite file of one machine, or what several machines can share."""

from __future__ import annotations

import platform
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import optuna

KINDS = "sqlite:///FILE, journal:///FILE, grpc://HOST:PORT or postgresql://USER@HOST/DATABASE"
SECONDS_TO_ANSWER = 10
"""A server that does not answer for so long is not there."""
ATTEMPTS = 10
"""To make the tables of a database, while other processes try the same."""
SECONDS_TO_WRITE = 60
"""For which a process waits while others write to an SQLite file."""
HOST = "host"
"""Attribute of a study in an SQLite file: the machine that made it."""


def open_storage(url: str) -> optuna.storages.BaseStorage:
    """The storage of a URL.

    Raises:
        ValueError: It is no such URL, or nothing answers there; the sentence has the remedy.
    """
    kind = url.partition("://")[0]
    if kind not in _OPENERS:
        raise _refusal(url, f"it is one of {KINDS}")
    with explained(url):
        return _OPENERS[kind](url)


def open_study(
    url: str, *, name: str, sampler: optuna.samplers.BaseSampler, pruner: optuna.pruners.BasePruner
) -> optuna.Study:
    """The study of that name in a storage, made where there is none.

    Raises:
        ValueError: The storage cannot be used, or it is the SQLite file of another machine.
    """
    import optuna

    storage = open_storage(url)
    with explained(url):
        study = optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, pruner=pruner, direction="maximize", load_if_exists=True
        )
        if url.startswith("sqlite:"):
            made_on = study.user_attrs.get(HOST)
            if made_on is None:
                study.set_user_attr(HOST, made_on := platform.node())
            if made_on != platform.node():
                raise ValueError(
                    f"the study {name!r} of {url} was made on {made_on}, and this is {platform.node()}: machines that "
                    "share an SQLite file damage it; use --storage journal:///FILE on a disk that all machines see, "
                    "grpc://HOST:PORT or postgresql://..."
                )
    return study


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what databases and servers raise into a sentence about the storage."""
    import grpc
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except StorageInternalError as error:
        raise _refusal(url, _first_line(error.__cause__ or error)) from None
    except SQLAlchemyError as error:
        raise _refusal(url, _first_line(getattr(error, "orig", None) or error)) from None
    except grpc.RpcError as error:
        details = error.details() if isinstance(error, grpc.Call) else error
        raise _refusal(url, f"its server says: {_first_line(details)}") from None


def _sqlite(url: str) -> optuna.storages.BaseStorage:
    _file(url)
    return _relational(url, connect_args={"timeout": SECONDS_TO_WRITE})


def _journal(url: str) -> optuna.storages.BaseStorage:
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    path = str(_file(url))
    try:
        # A file that is made with O_EXCL is a lock on NFS from version 3 on; symbolic links are for the older ones.
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    except OSError as error:
        raise _refusal(url, str(error)) from None
    except (ValueError, KeyError, TypeError):
        raise _refusal(url, f"{path} is no journal of Optuna; name another file") from None


def _grpc(url: str) -> optuna.storages.BaseStorage:
    import optuna

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.path.strip("/"):
        raise _refusal(url, "it is written grpc://HOST:PORT")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        proxy = optuna.storages.GrpcStorageProxy(host=host, port=port)
    try:
        proxy.wait_server_ready(timeout=SECONDS_TO_ANSWER)
    except ConnectionError:
        proxy.close()
        raise _refusal(
            url, f"no server answers there; start one with optuna.storages.run_grpc_proxy_server(..., port={port})"
        ) from None
    return proxy


def _postgresql(url: str) -> optuna.storages.BaseStorage:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise _refusal(url, "psycopg is not installed: pip install 'lesam[postgresql]'") from None
    from sqlalchemy.pool import NullPool

    # Drivers have little to say in hours: no connection is kept, so that a server may have many of them, or restart.
    seldom = {"connect_args": {"connect_timeout": SECONDS_TO_ANSWER}, "poolclass": NullPool}
    return _relational(url, "postgresql+psycopg", **seldom)


_OPENERS = {
    "sqlite": _sqlite,
    "journal": _journal,
    "grpc": _grpc,
    "postgresql": _postgresql,
    "postgresql+psycopg": _postgresql,
}


def _relational(url: str, dialect: str = "", **options: object) -> optuna.storages.BaseStorage:
    import optuna
    from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

    named = f"{dialect}://{url.partition('://')[2]}" if dialect else url
    for left in reversed(range(ATTEMPTS)):
        try:
            return optuna.storages.RDBStorage(named, engine_kwargs=dict(options))
        except SQLAlchemyError as error:
            # Another process makes the same tables at this moment: databases say so in different words.
            racing = isinstance(error, IntegrityError | ProgrammingError) or "already exists" in str(error)
            if not racing or not left:
                raise
        except (ValueError, RuntimeError) as error:  # a port that is no number; tables of another version of Optuna
            raise _refusal(url, _first_line(error)) from None
        time.sleep(random.uniform(0.0, 0.3))
    raise AssertionError("the last attempt returns or raises")


def _file(url: str) -> Path:
    """The file that a URL names, in a folder that is there."""
    kind, _, path = url.partition("://")
    if not path.startswith("/") or not path[1:]:
        raise _refusal(url, f"it is written {kind}:///FILE, or {kind}:////FOLDER/FILE from the root")
    file = Path(path[1:].partition("?")[0] if kind == "sqlite" else path[1:])
    if file.is_dir():
        raise _refusal(url, f"{file} is a folder; name a file in it")
    if not file.parent.is_dir():
        slashes = "" if file.is_absolute() else f"; a path from the root has four slashes: {kind}:////{file}"
        raise _refusal(url, f"there is no folder {file.parent}{slashes}")
    return file


def _refusal(url: str, why: str) -> ValueError:
    return ValueError(f"--storage {_without_password(url)} cannot be used: {why}")


def _without_password(url: str) -> str:
    """The same URL as it may be printed.

    >>> _without_password("postgresql://me:secret@db/search"), _without_password("journal:///a@b")
    ('postgresql://me:***@db/search', 'journal:///a@b')
    """
    kind, _, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{kind}://{user}:***@{place}" if at and colon else url


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
