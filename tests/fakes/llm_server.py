"""A loopback LLM server with scripted turns for the real agent CLIs: Anthropic, OpenAI Responses and Chat, Gemini.

A script is a list of steps. Which one is next is read off the conversation: the tool calls since the last prompt of the
user. Past the end the last one repeats. A list of such lists has one script a prompt (a session that was resumed). A
request that offers no tools (titles, summaries) gets a short text and does not count.

    {"shell": "ls"}                     calls the CLI's own shell tool; "call": ["name", {...}] calls any tool
    {"say": "done"}                     ends the turn with a text
    "think": "..."                      thinking that comes before either
    "usage": [1000, 20, 400]            tokens: input with what was cached, output, cached
    "sleep": 3                          seconds before it answers
    {"status": 429, "kind": "...", "message": "...", "headers": {...}, "times": 2, ...}
                                        an HTTP error, `times` times (always, without), then the rest of the step
    {"drop": "start" | "middle", "times": 1, ...}
                                        closes the connection before an answer, or in the middle of its stream
    {"stall": 30, ...}                  a pause (seconds) in the middle of the stream

    with serving({"train": [{"shell": "bash timer.sh"}, {"say": "done"}]}) as server:
        server.url("train")             # the base URL of that script, without /v1
        server.requests                 # each: path, headers, body, protocol, script, step, prompts, tools

`server.keys`, when set, is the set of keys that are let in; others get 401. GET .../models answers as providers do.
As a program, `python -m tests.fakes.llm_server SCRIPTS.json [PORT]` prints its port and serves until it is killed; GET
/_log shows the requests.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes import loopback
from tests.fakes.llm_protocols import PROTOCOLS, Answer, Conversation, Json, Protocol, shell_call

type Step = dict[str, Any]
type Script = list[Step] | list[list[Step]]

USAGE = (1000, 20, 400)
MODELS = ("claude-opus-4-8", "gpt-5.5", "gemini-3.1-pro-preview", "qwen3-max")
# What providers call their errors.
KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
KINDS |= {
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
}


@dataclass
class Request:
    """What a CLI sent."""

    at: float
    method: str
    path: str
    headers: dict[str, str]
    script: str
    body: Json = field(default_factory=dict)
    protocol: str | None = None
    tools: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    step: int | None = None  # None: not part of a script

    @property
    def key(self) -> str | None:
        """The key it was sent with, however the protocol does that."""
        given = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        query = re.search(r"[?&]key=([^&]+)", self.path)
        return given or bearer or (query[1] if query else None)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, scripts: dict[str, Script], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.scripts = scripts
        self.keys: set[str] | None = None
        self.models = set(MODELS)
        self.requests: list[Request] = []
        self._faults: Counter[tuple[str, int, int]] = Counter()
        self._lock = threading.Lock()

    def url(self, script: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/s/{script}"

    def of(self, script: str) -> list[Request]:
        """The requests that took part in a script, in order."""
        with self._lock:
            return [one for one in self.requests if one.script == script and one.step is not None]

    def add(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def step(self, script: str, conversation: Conversation) -> Step:
        """The step that is next."""
        steps: Any = self.scripts[script]
        if steps and isinstance(steps[0], list):
            steps = steps[min(max(len(conversation.prompts), 1), len(steps)) - 1]
        return steps[min(conversation.calls, len(steps) - 1)]

    def is_faulty(self, script: str, conversation: Conversation, step: Step) -> bool:
        """Whether a step's fault is still to come, or has been shown as often as it says."""
        place = script, len(conversation.prompts), conversation.calls
        with self._lock:
            self._faults[place] += 1
            return self._faults[place] <= step.get("times", float("inf"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error; anything else is the fake's own fault and must be seen."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def _request(self) -> tuple[Request, str]:
        """What was asked, and its path below the script's."""
        path = self.path.partition("?")[0]
        found = re.match(r"/s/([^/]+)(/.*)", path)
        script, path = (found[1], found[2]) if found else ("default", path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(time.time(), self.command, self.path, headers, script), path

    def _get(self) -> None:
        request, path = self._request()
        if path == "/_log":
            return self._reply(200, [asdict(one) for one in self.server.requests])
        self.server.add(request)
        if "upgrade" in request.headers:
            return self._reply(426, {"error": {"message": "no websockets here"}})  # codex goes on without
        if not self._is_let_in(request):
            return self._reply(
                401, {"error": {"message": "invalid key", "type": KINDS[401], "code": "invalid_api_key"}}
            )
        if path.endswith("/models"):
            named = [{"id": name, "name": f"models/{name}", "object": "model"} for name in sorted(self.server.models)]
            return self._reply(200, {"object": "list", "data": named, "models": named})
        if (name := path.rpartition("/models/")[2]) in self.server.models:
            return self._reply(200, {"id": name, "name": f"models/{name}", "object": "model"})
        return self._reply(404, {"error": {"message": f"{path}: not found", "type": KINDS[404]}})

    def _is_let_in(self, request: Request) -> bool:
        return self.server.keys is None or request.key in self.server.keys

    def do_POST(self) -> None:
        request, path = self._request()
        raw = self._body()
        with contextlib.suppress(ValueError):
            request.body = json.loads(raw or b"{}")
        for protocol in PROTOCOLS:
            if found := protocol.path.search(path):
                request.body |= {"model": found["model"]} if "model" in found.groupdict() else {}
                stream = found.groupdict().get("method") == "streamGenerateContent" or request.body.get("stream")
                return self._converse(request, protocol, bool(stream))
        self.server.add(request)
        if path.endswith(("/count_tokens", ":countTokens")):
            return self._reply(200, {"input_tokens": 1000, "totalTokens": 1000})
        return self._reply(404, {"error": {"message": f"{path}: not found"}})

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _converse(self, request: Request, protocol: Protocol, stream: bool) -> None:
        tools, conversation = protocol.tools(request.body), protocol.conversation(request.body)
        step: Step = self.server.step(request.script, conversation) if tools else {"say": _aside(request.body)}
        if wait := protocol.wait(request.body):
            step = {"call": wait}
        request.protocol, request.tools, request.prompts = protocol.name, sorted(tools), conversation.prompts
        request.step = conversation.calls if tools else None
        self.server.add(request)
        if not self._is_let_in(request):
            return self._reply(401, protocol.error(401, KINDS[401], "invalid x-api-key"))
        time.sleep(step.get("sleep", 0))
        faulty = ("status" in step or "drop" in step) and self.server.is_faulty(request.script, conversation, step)
        if faulty and "status" in step:
            status = step["status"]
            kind, message = step.get("kind", KINDS.get(status, "api_error")), step.get("message", "a scripted error")
            return self._reply(status, protocol.error(status, kind, message), step.get("headers", {}))
        if faulty and step["drop"] == "start":
            self.close_connection = True
            return None
        answer = _answer(str(request.body.get("model")), tools, step)
        if not stream:
            return self._reply(200, protocol.whole(answer))
        return self._stream(protocol, answer, step, cut=faulty)

    def _stream(self, protocol: Protocol, answer: Answer, step: Step, cut: bool) -> None:
        self.send_response(200)
        for name, value in (("content-type", "text/event-stream"), ("transfer-encoding", "chunked")):
            self.send_header(name, value)
        self.end_headers()
        events = protocol.events(answer)
        for number, event in enumerate(events):
            if number == len(events) // 2:
                time.sleep(step.get("stall", 0))
                if cut:
                    self.close_connection = True
                    return
            name = f"event: {event['type']}\n" if protocol.named_events else ""
            self._chunk(f"{name}data: {json.dumps(event)}\n\n")
        self._chunk(protocol.end)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def _reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _aside(body: Json) -> str:
    """The answer to a request beside the script: a title, or gemini-cli's question who is next."""
    if (body.get("generationConfig") or {}).get("responseMimeType") == "application/json":
        told = {"reasoning": "scripted", "next_speaker": "user", "model_choice": "flash"}
        return json.dumps({**told, "complexity_reasoning": "scripted", "complexity_score": 1})
    return "ok"


def _answer(model: str, tools: set[str], step: Step) -> Answer:
    call = tuple(step["call"]) if "call" in step else None
    text = step.get("say", "done")
    if "shell" in step:
        call = shell_call(tools, step["shell"])
        text = text if call else f"no shell tool among {sorted(tools)}"
    given, made, cached = step.get("usage", USAGE)
    return Answer(model, step.get("think", ""), text, call, (given, made, cached))


@contextlib.contextmanager
def serving(scripts: dict[str, Script]) -> Iterator[Server]:
    """A server in this process, on a port of its own."""
    with loopback.running(Server(scripts)) as server:
        yield server


def main(scripts: str, port: str = "0") -> None:
    server = Server(json.loads(Path(scripts).read_text()), int(port))
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
