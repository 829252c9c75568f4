"""A loopback image registry over plain HTTP, to pull from: it serves a folder made by `podman push IMAGE dir:FOLDER`.

Every name and tag is that image. `failures` is how many requests for a manifest still fail, `login` (user, password)
what a client must say; `asked` has the paths of all requests.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, override

from tests.fakes import loopback

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.failures = 0
        self.login: tuple[str, str] | None = None
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def n_manifests(self) -> int:
        """How often a manifest was asked for."""
        return sum("/manifests/" in path for path in self.asked)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Registry]:
    with loopback.running(Registry(folder)) as registry:
        yield registry


class _Handler(BaseHTTPRequestHandler):
    server: Registry  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        registry = self.server
        registry.asked.append(self.path)
        word = base64.b64encode(":".join(registry.login or ()).encode()).decode()
        *_, kind, name = self.path.split("/")
        if registry.login and self.headers.get("Authorization") != f"Basic {word}":
            self._send(401, b"{}", {"WWW-Authenticate": 'Basic realm="test"'})
        elif kind == "manifests" and registry.failures > 0:
            registry.failures -= 1
            self._send(500, b'{"errors": [{"code": "UNKNOWN", "message": "busy"}]}')
        elif kind == "manifests":
            content = (registry.folder / "manifest.json").read_bytes()
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            self._send(200, content, {"Content-Type": MANIFEST, "Docker-Content-Digest": digest})
        elif kind == "blobs":
            self._send(200, (registry.folder / name.removeprefix("sha256:")).read_bytes())
        else:
            self._send(200, b"{}")

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
