"""Asking a registry for a manifest, with and without a login, by both ways that registries have."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, override

import pytest

from ptb_runner.sandbox import manifests
from tests.fakes import loopback

LOGIN = base64.b64encode(b"me:word").decode()


class Registry(BaseHTTPRequestHandler):
    """Gives the manifest of team/tool:1 for a token, which its own service gives for the login."""

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""

    def do_GET(self) -> None:
        host, said = self.headers["Host"], self.headers.get("Authorization", "")
        path, _, query = self.path.partition("?")
        if path == "/token":
            good = said == f"Basic {LOGIN}" and "scope=repository%3Ateam%2Ftool%3Apull" in query
            self.answer(200 if good else 403, {"token": "given"})
        elif said != "Bearer given":
            ask = f'Bearer realm="http://{host}/token",service="s",scope="repository:team/tool:pull"'
            self.answer(401, {}, ask)
        else:
            known = path == "/v2/copies/team/tool/manifests/1"
            self.answer(200 if known else 404, {"schemaVersion": 2})

    def answer(self, status: int, content: Any, ask: str = "") -> None:
        self.send_response(status)
        if ask:
            self.send_header("WWW-Authenticate", ask)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


@pytest.fixture
def place() -> Iterator[str]:
    with loopback.running(ThreadingHTTPServer(("127.0.0.1", 0), Registry)) as server:
        yield f"127.0.0.1:{server.server_port}"


def log_in(place: str, tmp_path, monkeypatch) -> None:
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {place: {"auth": LOGIN}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))


def test_a_token_is_asked_for_with_the_login(place, tmp_path, monkeypatch):
    log_in(place, tmp_path, monkeypatch)
    assert manifests.fault(f"http://{place}/copies", "team/tool:1") is None
    assert manifests.fault(f"http://{place}/copies", "team/tool") == "HTTP 404 Not Found"
    assert manifests.fault(f"http://{place}", "team/tool:1") == "HTTP 404 Not Found"


def test_without_a_login_the_service_refuses(place, monkeypatch):
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    assert "403" in (manifests.fault(f"http://{place}/copies", "team/tool:1") or "")


def test_nobody_is_there():
    assert "refused" in (manifests.fault("http://127.0.0.1:9", "team/tool:1") or "")


@pytest.mark.parametrize(
    ("image", "path"),
    [
        ("a/b", "a/b/manifests/latest"),
        ("a/b:1", "a/b/manifests/1"),
        ("a/b@sha256:0a", "a/b/manifests/sha256:0a"),
    ],
)
def test_the_address_of_a_manifest(image, path):
    assert manifests._address("host.example:5000/", image) == (
        f"https://host.example:5000/v2/{path}",
        "host.example:5000",
    )
