"""Downloads that can be interrupted: resumed from a ``.part`` file, checked, then renamed in one step."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
from pathlib import Path

logger = logging.getLogger(__name__)

BLOCK = 1 << 20


def md5_of(path: Path) -> str:
    """Return the md5 of a file as hexadecimal digits."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def download(url: str, target: Path, md5: str, *, attempts: int = 3, timeout: float = 30.0) -> None:
    """Download a file whose md5 is known; ``target`` exists only when all of it is there and right.

    What arrived of an interrupted download stays in ``target.part`` and is continued, by the next attempt
    or the next process. A complete file with a wrong md5 is thrown away.

    Args:
        url: Where the file is.
        target: Where it shall be.
        md5: Its checksum.
        attempts: Connections to try before giving up.
        timeout: Seconds of silence after which a connection counts as broken.

    Raises:
        ConnectionError: When the file could not be had.
        RuntimeError: When the server's file has another md5.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    logger.info("downloading %s to %s", url, target)
    reason: Exception | None = None
    for _ in range(attempts):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _continue(url, part, timeout)
        except (OSError, http.client.HTTPException) as error:
            reason = error
            continue
        found = md5_of(part)
        if found == md5:
            os.replace(part, target)
            return
        part.unlink()
        reason = RuntimeError(f"{url} has md5 {found}, expected {md5}")
        if not resumed:
            raise reason
        # The old part may have belonged to another file: one more time, from the start.
    if isinstance(reason, RuntimeError):
        raise reason
    raise ConnectionError(f"{url}: {reason}") from reason


def _continue(url: str, part: Path, timeout: float) -> None:
    """Append what is missing to ``part``; raise when the connection ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is missing: the checksum decides
        raise
    with response:
        # A server that ignores the range sends everything.
        continued = response.status == http.HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if continued else "wb") as file:
            arrived = 0
            while block := response.read(BLOCK):
                file.write(block)
                arrived += len(block)
    announced = response.headers.get("Content-Length")
    if announced is not None and arrived < int(announced):
        raise ConnectionError(f"the connection ended after {arrived} of {announced} bytes")
