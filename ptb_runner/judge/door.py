"""The only way out of a judge's sandbox: the API of its LLM, through a Unix socket. The key stays on this side.

Every answer of the LLM is read on its way in. What a judge has said, how often it has asked and what that took is known
from here, and from nothing that a program in the sandbox could write.
"""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, override

from ptb_runner.config import JudgesConfig
from ptb_runner.judge.api import Call, Reply, Usage, usage_of, wait_before

if TYPE_CHECKING:
    import httpx

OPENAI = "https://api.openai.com/v1"
PATH = "/v1/responses"
MAX_REQUEST = 256 * 2**20
_PASSES = (408, 409, 425, 429)


class Door:
    """A server on a socket in `folder`, for as long as the `with` lasts.

    `may_ask` is asked before each request, `asked` gets its body, and `answered` what the LLM then said, with the last
    of its messages, since an answer may hold several.
    """

    def __init__(
        self,
        judges: JudgesConfig,
        model: str,
        may_ask: Callable[[], bool],
        asked: Callable[[dict[str, Any]], None],
        answered: Callable[[Reply, str], None],
    ) -> None:
        self.judges, self.model = judges, model
        self.may_ask, self.asked, self.answered = may_ask, asked, answered
        self.trouble: str | None = None  # why the last request had no answer
        self.lock = threading.Lock()  # one request at a time

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[None]:
        """Serve on the socket `folder`/llm."""
        import httpx

        base = self.judges.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
        self.url = f"{base.rstrip('/')}/responses"
        key = os.environ.get(self.judges.api_key_var) if self.judges.api_key_var else None
        headers = {"authorization": f"Bearer {key or 'none'}", "content-type": "application/json"}
        with (
            httpx.Client(headers=headers, timeout=self.judges.timeout_sec) as self.client,
            _at(folder) as address,
            _Server(address, _Handler) as server,
        ):
            server.door = self
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()


@contextlib.contextmanager
def _at(folder: Path) -> Iterator[str]:
    """An address of a socket in a folder; by descriptor, since an address has at most 107 characters."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/llm"
    finally:
        os.close(descriptor)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    door: Door

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone; what matters is told where the judge is."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._refuse(404, "there is nothing but the LLM here")

    def do_POST(self) -> None:
        door = cast(_Server, self.server).door
        length = int(self.headers.get("content-length") or 0)
        if self.path != PATH or not 0 < length <= MAX_REQUEST:
            return self._refuse(404, "there is nothing but the LLM here")
        content = self.rfile.read(length)
        try:
            body = json.loads(content)
        except ValueError:
            return self._refuse(400, "the request is no JSON")
        if not isinstance(body, dict) or body.get("model") != door.model or not body.get("stream"):
            return self._refuse(403, f"only answers of {door.model} can be had here, as a stream")
        with door.lock:
            if not door.may_ask():
                return self._refuse(403, "there is nothing left to spend")
            door.asked(body)
            return self._forward(door, content)

    def _forward(self, door: Door, content: bytes) -> None:
        """Pass a request on, again while that may help, and its answer back as it comes."""
        import httpx

        for number in range(1, door.judges.retries + 2):
            last = number == door.judges.retries + 1
            try:
                with door.client.stream("POST", door.url, content=content) as response:
                    if response.status_code == 200:
                        return self._stream(door, response)
                    said = response.read()
                    door.trouble = f"{response.status_code}: {said.decode(errors='replace')[:300]}"
                    if last or not (response.status_code in _PASSES or response.status_code >= 500):
                        return self._send(response.status_code, said)
                    wait = wait_before(door.judges, number, response.headers)
            except httpx.TransportError as error:
                door.trouble = f"{type(error).__name__}: {error}"
                if last:
                    return self._refuse(502, door.trouble)
                wait = wait_before(door.judges, number, {})
            time.sleep(wait)
        raise AssertionError("the last try returns")

    def _stream(self, door: Door, response: httpx.Response) -> None:
        import httpx

        self.send_response(200)
        self.send_header("content-type", response.headers.get("content-type", "text/event-stream"))
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        heard = Heard()
        with contextlib.suppress(httpx.TransportError, ConnectionError):  # codex asks again, or is gone
            for piece in response.iter_bytes():
                self.wfile.write(piece)
                heard.take(piece)
        if heard.usage is None:
            door.trouble = heard.trouble or "an answer that broke off"
        else:
            door.trouble = None
            door.answered(Reply("\n".join(heard.texts), heard.calls, heard.usage), "".join(heard.texts[-1:]))

    def _refuse(self, status: int, message: str) -> None:
        self._send(status, json.dumps({"error": {"message": message, "type": "refused"}}).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Heard:
    """What the LLM says, from the events of its answer; it is whole when `usage` is known."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[Call] = []
        self.usage: Usage | None = None
        self.trouble: str | None = None
        self._rest = b""

    def take(self, piece: bytes) -> None:
        """A piece of the stream."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                    self._event(json.loads(line.removeprefix(b"data:")))

    def _event(self, event: dict[str, Any]) -> None:
        if event["type"] == "response.output_item.done":
            self._item(event["item"])
        elif event["type"] == "response.completed":
            self.usage = usage_of(event["response"])
        elif event["type"] in ("response.failed", "response.incomplete", "error"):
            self.trouble = json.dumps(event)[:300]

    def _item(self, item: dict[str, Any]) -> None:
        if item["type"] == "message":
            parts = [part["text"] for part in item["content"] if part["type"] == "output_text"]
            self.texts.append("".join(parts))
        elif item["type"].endswith("_call"):
            arguments = item.get("arguments") or item.get("input") or json.dumps(item.get("action"))
            self.calls.append(Call(item.get("call_id", ""), item.get("name", item["type"]), arguments))
