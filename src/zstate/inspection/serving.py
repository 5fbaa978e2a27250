"""`zstate inspect --serve`: the page on this machine, made anew for each checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from ..errors import ZStateError


class Server(ThreadingHTTPServer):
    """Serves a page on 127.0.0.1: "/" is the page, "/version" what it is made from.

    ``version`` says what a page would be made from now, ``make`` makes the page of a version.
    """

    daemon_threads = True

    def __init__(self, version: Callable[[], str], make: Callable[[str], bytes]) -> None:
        self._version, self._make, self._lock = version, make, Lock()
        self._made = ("", b"")
        self.current()  # any error comes before the browser opens
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def version(self) -> str:
        """What a page would be made from now; that of the last page while nothing can be read."""
        try:
            return self._version()
        except (ZStateError, OSError):
            if not self._made[1]:
                raise
            return self._made[0]

    def current(self) -> bytes:
        """The newest page; an older one while a newer one cannot be made."""
        with self._lock:
            version = self.version()
            if version != self._made[0]:
                try:
                    self._made = (version, self._make(version))
                except (ZStateError, OSError):
                    if not self._made[1]:
                        raise
            return self._made[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing for a browser that left before the end of a page."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        # Another site's page may use a name that resolves here; it gets nothing.
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost"):
            self._answer(403, "text/plain", b"this machine only\n")
        elif self.path == "/":
            self._answer(200, "text/html; charset=utf-8", self.server.current())
        elif self.path == "/version":
            self._answer(200, "text/plain", self.server.version().encode())
        else:
            self._answer(404, "text/plain", b"not here\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for refusals."""
