"""A loopback model hub for the real huggingface_hub client: HF_ENDPOINT=http://127.0.0.1:PORT.

    with hub_server.running({"models/org/name": {"config.json": b"{}"}}) as hub: ...

Repositories are named models/ORG/NAME or datasets/ORG/NAME, each with one commit, on `main`. `hub.gated` lists those
that want `hub.token`; `hub.cut[FILE]` is after how many bytes the connection breaks, each time; `hub.sent` counts the
bytes of file contents, `hub.asked` lists the requests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes import loopback

Files = dict[str, bytes]


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, repositories: dict[str, Files], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.repositories = repositories
        self.gated: set[str] = set()
        self.token = "hf_made_up_for_tests"
        self.cut: dict[str, int] = {}
        self.sent = 0
        self.asked: list[str] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, name: str) -> str:
        """The one commit of a repository: it changes with the content."""
        content = json.dumps(sorted((path, _sha(data)) for path, data in self.repositories[name].items()))
        return hashlib.sha1(content.encode(), usedforsecurity=False).hexdigest()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error."""


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        if not self.path.startswith("/api/"):
            self._file(body=True)
            return
        found = re.match(r"/api/((?:models|datasets)/[^/]+/[^/?]+)(?:/(revision|tree)/([^/?]+))?", self.path)
        if found and (name := self._allowed(found[1], found[3] or "main", listing=True)):
            commit = self.server.commit(name)
            self._json(self._tree(name) if found[2] == "tree" else {"id": name.partition("/")[2], "sha": commit})
        elif not found:
            self._refuse(404, "RepoNotFound")

    def _tree(self, name: str) -> list[dict[str, Any]]:
        files = self.server.repositories[name].items()
        return [{"type": "file", "path": path, "size": len(data), "oid": _sha(data)[:40]} for path, data in files]

    def _allowed(self, name: str, revision: str, *, listing: bool = False) -> str | None:
        """The repository's name, or None when the request was refused. Listing a gated one is free."""
        with self.server.lock:
            self.server.asked.append(f"{self.command} {self.path}")
        if name not in self.server.repositories:
            self._refuse(404, "RepoNotFound")
        elif revision not in ("main", self.server.commit(name)):
            self._refuse(404, "RevisionNotFound")
        elif name in self.server.gated and not listing and self._token() != self.server.token:
            self._refuse(401, "GatedRepo")
        else:
            return name
        return None

    def _token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _file(self, *, body: bool) -> None:
        found = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/([^?]+)(?:\?.*)?", self.path)
        kind = "" if self.path.startswith("/datasets/") else "models/"
        name = self._allowed(f"{kind}{found[1]}", found[2]) if found else None
        if not found or not name:
            return
        data = self.server.repositories[name].get(found[3])
        if data is None:
            self._refuse(404, "EntryNotFound")
            return
        first = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if first else 200)
        self.send_header("X-Repo-Commit", self.server.commit(name))
        self.send_header("ETag", f'"{_sha(data)}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self._send(found[3], data[first:])

    def _send(self, name: str, data: bytes) -> None:
        cut = self.server.cut.get(name)
        part = data if cut is None else data[:cut]
        with self.server.lock:
            self.server.sent += len(part)
        self.wfile.write(part)
        self.close_connection = len(part) < len(data)


@contextlib.contextmanager
def running(repositories: dict[str, Files]) -> Iterator[Hub]:
    """A hub for as long as this lasts."""
    with loopback.running(Hub(repositories)) as hub:
        yield hub
