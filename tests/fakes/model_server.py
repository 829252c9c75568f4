"""A loopback OpenAI-compatible server with scripted answers: a model under test, a grader, or what vLLM would start.

A script is a list of rules; the first whose `match` is part of the conversation (all messages, joined) answers:

    {"match": "two apples", "say": "ANSWER: 2"}              a text; "finish": "length" for one that was cut off
    {"match": "...", "call": ["add", {"a": 1}]}              a tool call
    {"match": "...", "status": 429, "message": "...", "code": "...", "headers": {...}, "times": 1}   an error, once
    {"match": "...", "sleep": 5, "say": "..."}               a slow answer
    {"match": "...", "raw": "{"}                             any body

Without a rule it says "I do not know.". GET /_log tells the bodies of all completions asked for, as JSON.

As a program, `model_server.py serve MODEL --port N ...` behaves like `vllm serve`; FAKE_VLLM, a JSON object, says how:
    rules     the script
    delay     seconds until completions work (503 before, while /v1/models already answers)
    die       text to print before it ends with exit code 1; with `starts`, a file that counts them, only the first
              `deaths` times
    arguments a file for its command line
    children  a file for the pids of two children, one of which leaves the process group
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Rule = dict[str, Any]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, rules: list[Rule], port: int = 0, ready_at: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.rules, self.ready_at = rules, ready_at
        self.log: list[Any] = []
        self.refuse: int | None = None  # the HTTP status of every completion
        self.used = [0] * len(rules)
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error."""

    def rule_for(self, body: dict[str, Any]) -> Rule:
        said = "\n".join(text_of(message) for message in body.get("messages", []))
        with self.lock:
            for number, rule in enumerate(self.rules):
                if rule.get("match", "") in said and self.used[number] < rule.get("times", float("inf")):
                    self.used[number] += 1
                    return rule
        return {"say": "I do not know."}


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.reply(
            200, self.server.log if self.path == "/_log" else {"object": "list", "data": [{"id": "final_model"}]}
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if time.monotonic() < self.server.ready_at:
            return self.reply(503, {"error": {"message": "still loading"}})
        if self.server.refuse:
            return self.reply(self.server.refuse, {"error": {"message": "refused"}})
        if body.get("max_tokens") == 1:  # the evaluator's first token
            return self.reply(200, completion(body, {"say": "Hi"}))
        self.server.log.append(body)
        rule = self.server.rule_for(body)
        time.sleep(rule.get("sleep", 0))
        if "status" in rule:
            fault = {"message": rule.get("message", "scripted"), "code": rule.get("code", rule["status"])}
            return self.reply(rule["status"], {"error": fault}, rule.get("headers", {}))
        return self.reply(200, rule["raw"] if "raw" in rule else completion(body, rule))

    def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def completion(body: dict[str, Any], rule: Rule) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": rule.get("say")}
    finish = rule.get("finish", "stop")
    if "call" in rule:
        name, arguments = rule["call"]
        function = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        finish = "tool_calls"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


@contextlib.contextmanager
def serving(rules: list[Rule]) -> Iterator[Server]:
    """A server in this process, on a port of its own."""
    from tests.fakes import loopback  # as a program, this file stands alone

    with loopback.running(Server(rules)) as server:
        yield server


def like_vllm(arguments: list[str]) -> None:
    """Behave like `vllm serve`, for good."""
    told = json.loads(os.environ.get("FAKE_VLLM", "{}"))
    if "arguments" in told:
        Path(told["arguments"]).write_text(json.dumps(arguments))
    if "children" in told:
        children = [subprocess.Popen(["sleep", "600"], start_new_session=leave) for leave in (False, True)]
        Path(told["children"]).write_text(" ".join(str(child.pid) for child in [*children]))
    starts = Path(told.get("starts", os.devnull))
    with starts.open("a") as file:
        file.write(".")
    if "die" in told and ("starts" not in told or len(starts.read_text()) <= told["deaths"]):
        time.sleep(told.get("delay", 0))
        print(told["die"], flush=True)
        sys.exit(1)
    port = int(arguments[arguments.index("--port") + 1])
    Server(told.get("rules", []), port, time.monotonic() + told.get("delay", 0)).serve_forever()


if __name__ == "__main__":
    like_vllm(sys.argv[1:])
