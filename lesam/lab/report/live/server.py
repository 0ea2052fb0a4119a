"""A small web server for one page: two addresses, GET and HEAD, and only for those who ask for this machine by name.

A page elsewhere on the web can make a browser send requests here. It cannot read the answers, as nothing allows it to,
and by pointing a name of its own at this machine (DNS rebinding) it fails at the ``Host`` header: that must be an
address, ``localhost``, or, where the server listens to other machines, this machine's name.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lesam.lab.report.live.folder import Made, WatchedFolder
from lesam.lab.report.page.html import policy

HTML = "text/html; charset=utf-8"
MOST_PORTS = 65535


class PageServer(ThreadingHTTPServer):
    """Serves the page of a watched folder."""

    daemon_threads = True

    def __init__(self, folder: WatchedFolder, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes any free one.

        Raises:
            ValueError: There is no such port, it is taken, or the address is not one of this machine's.
        """
        if not 0 <= port <= MOST_PORTS:
            raise ValueError(
                f"port {port} does not exist; choose one from 1 to {MOST_PORTS}, or any free one with --port 0"
            )
        self.folder = folder
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), PageHandler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(
                    f"port {port} of {host} is taken, perhaps by another `lesam watch`; choose another one with "
                    "--port, or any free one with --port 0"
                ) from None
            raise ValueError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong, unless it is a browser that left before it had its answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        name = host if isinstance(host, str) else host.decode()
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/"

    def knows(self, host: str) -> bool:
        """Whether a ``Host`` header names this machine and not a name that somebody else pointed at it."""
        name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        bound = ipaddress.ip_address(self.server_address[0])  # type: ignore[arg-type]
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" or (not bound.is_loopback and name == socket.gethostname().lower())
        return address.is_loopback or not bound.is_loopback


class PageHandler(BaseHTTPRequestHandler):
    """Answers one browser."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "lesam", ""
    timeout = 30

    def do_GET(self) -> None:
        """The page at ``/``, and what changes of it at ``/content``."""
        pages: dict[str, Callable[[Made], bytes]] = {"/": Made.page, "/content": lambda made: made.body}
        if not self.server.knows(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, b"this server answers to its own address only\n")
            return
        wanted = pages.get(self.path.partition("?")[0])
        if wanted is None:
            self._answer(HTTPStatus.NOT_FOUND, b"there is one page here, at /\n")
            return
        made = self.server.folder.current()
        if self.headers.get("If-None-Match") == made.tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", made.tag)
        else:
            self._answer(HTTPStatus.OK, wanted(made), made.tag, HTML)

    do_HEAD = do_GET  # noqa: N815

    def _refused(self) -> None:
        """Nothing can be changed here."""
        self.close_connection = True  # whatever was sent along is not read
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD only\n")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refused  # noqa: N815

    def _answer(self, status: HTTPStatus, body: bytes, tag: str = "", kind: str = "text/plain; charset=utf-8") -> None:
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if tag:
            headers["ETag"] = tag
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and status is not HTTPStatus.NOT_MODIFIED:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a page asks every few seconds."""
