"""A loopback proxy for HTTPS that answers for every host itself: what a program fetches from the internet, without one.

`Proxy.variables` are those by which a program, in Python at least, uses the proxy and trusts it; `asked` holds the
paths that were asked for, of whatever host.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

from tests.fakes import loopback


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, pages: dict[str, bytes], folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages = pages
        self.asked: list[str] = []
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(folder / "authority.pem")
        address = f"http://127.0.0.1:{self.server_port}"
        self.variables = {
            "HTTPS_PROXY": address,
            "SSL_CERT_FILE": str(folder / "authority.pem"),
            "NO_PROXY": "127.0.0.1",
        }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_CONNECT(self) -> None:
        """Take the place of the host that is asked for."""
        self.send_response(200)
        self.end_headers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.authority.issue_cert(self.path.rpartition(":")[0]).configure_cert(context)
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        page = self.server.pages.get(self.path)
        self.send_response(404 if page is None else 200)
        self.send_header("content-length", str(len(page or b"")))
        self.end_headers()
        self.wfile.write(page or b"")


@contextlib.contextmanager
def serving(pages: dict[str, bytes], folder: Path) -> Iterator[Proxy]:
    """A proxy with these pages, by path."""
    with loopback.running(Proxy(pages, folder)) as proxy:
        yield proxy
