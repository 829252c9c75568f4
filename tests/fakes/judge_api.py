"""An OpenAI-compatible server on loopback that plays judges: Responses and Chat Completions, without streaming.

A script is a list of steps, one for each answer of a conversation; which is next is read off the conversation, so that
any number of judges can share the server. Scripts are named by model; "*" is for any other. A step is one of

    {"call": NAME, "arguments": {...} or a text}    {"verdict": {...}}    {"say": TEXT}

and may begin with trouble: {"status": 429, "times": 2, "headers": {...}, "code": ...}, {"hang": seconds, "times": 1},
{"raw": TEXT, "times": 1} (a 200 with that body). A callable gets the request's body and returns a step.
"""

from __future__ import annotations

import collections
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast, override

from tests.fakes import loopback

Step = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
SEED = "call_0"  # the call that the judge's first message of files is an answer to


@dataclass
class Seen:
    """One request."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """What tools gave until then, in order."""
        if "input" in self.body:
            texts = [one["output"] for one in self.body["input"] if one.get("type") == "function_call_output"]
        else:
            texts = [one["content"] for one in self.body["messages"] if one["role"] == "tool"]
        return [json.loads(text) for text in texts]


@dataclass
class JudgeApi:
    """The server: where it is, and what it was asked."""

    scripts: dict[str, list[Step]]
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    troubles: collections.Counter[tuple[str, int]] = field(default_factory=collections.Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def by(self, model: str) -> list[Seen]:
        """The requests of one model's judge."""
        return [one for one in self.seen if one.body["model"] == model]

    def step(self, body: dict[str, Any]) -> dict[str, Any]:
        """The next step of a conversation; past the end of its script the last one again."""
        script = self.scripts.get(body["model"]) or self.scripts["*"]
        number = _turns(body)
        chosen = script[min(number, len(script) - 1)]
        step = dict(chosen(body) if callable(chosen) else chosen)
        with self.lock:
            self.troubles[body["model"], number] += 1
            over = self.troubles[body["model"], number] > step.get("times", 10**9)
        return {key: value for key, value in step.items() if key not in ("status", "hang", "raw")} if over else step


def _turns(body: dict[str, Any]) -> int:
    """Answers that the conversation has so far."""
    if "input" in body:
        return sum(
            (one.get("type") == "function_call" and one["call_id"] != SEED) or one.get("role") == "assistant"
            for one in body["input"]
        )
    turns = [one for one in body["messages"] if one["role"] == "assistant"]
    return sum(not any(call["id"] == SEED for call in one.get("tool_calls", [])) for one in turns)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        api = cast(_Server, self.server).api
        with api.lock:
            api.seen.append(Seen(self.path, body, {name.lower(): value for name, value in self.headers.items()}))
        step = api.step(body)
        if "hang" in step:
            time.sleep(step["hang"])
        if "raw" in step:
            return self._send(200, step["raw"].encode(), {})
        if "status" in step:
            error = {
                "error": {
                    "message": step.get("message", "scripted trouble"),
                    "code": step.get("code"),
                    "type": "trouble",
                }
            }
            return self._send(step["status"], json.dumps(error).encode(), step.get("headers", {}))
        make = _response if self.path.endswith("/responses") else _completion
        return self._send(200, json.dumps(make(body, step)).encode(), {})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        with contextlib.suppress(ConnectionError):  # who asked may have given up
            self.send_response(status)
            for name, value in {**headers, "content-type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)


def _call(step: dict[str, Any]) -> tuple[str, str] | None:
    """Name and arguments of the function that a step calls."""
    if "verdict" in step:
        return "submit_verdict", json.dumps(step["verdict"])
    if "call" not in step:
        return None
    arguments = step.get("arguments", {})
    return step["call"], arguments if isinstance(arguments, str) else json.dumps(arguments)


def _response(body: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    if (call := _call(step)) is not None:
        own = {"id": "fc_1", "call_id": f"call_{_turns(body) + 1}", "name": call[0], "arguments": call[1]}
        item = {"type": "function_call", "status": "completed", **own}
    else:
        content = [{"type": "output_text", "text": step["say"], "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "a sealed thought"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "status": "completed",
        "output": [thought, item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": step.get("input_tokens", 1000),
            "input_tokens_details": {"cached_tokens": 400},
            "output_tokens": 50,
            "output_tokens_details": {"reasoning_tokens": 20},
            "total_tokens": 1050,
        },
    }


def _completion(body: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.get("say")}
    if (call := _call(step)) is not None:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"id": f"call_{_turns(body) + 1}", "type": "function", "function": function}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}],
        "usage": {"prompt_tokens": step.get("input_tokens", 1000), "completion_tokens": 50, "total_tokens": 1050},
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, api: JudgeApi) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api


@contextlib.contextmanager
def serving(scripts: dict[str, list[Step]]) -> Iterator[JudgeApi]:
    """A server in this process, on a port of its own."""
    api = JudgeApi(scripts)
    with loopback.running(_Server(api)) as server:
        api.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield api
