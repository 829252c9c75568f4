"""Behaves like `vllm serve`, as a program: `vllm_server.py MODEL --served-model-name NAME --port N ...`.

It wants the key in VLLM_API_KEY, knows its one model, and says hello in each completion. FAKE_VLLM, a JSON object, says
what else:

    delay       seconds until it listens
    loading     seconds after that in which /v1/models answers already, and completions do not
    starts      a file that counts its starts
    die_at      the completion, with the right key, at which it dies with some last words (the first one asks whether
                it is ready); only in its first `deaths` starts (default: all)
    hang_at     the same for a server that answers nothing any more
    sick_at     the same for one that answers HTTP 500 from then on, and is not well
    children    a file for the pids of two children, one of which leaves session and process group
    stubborn    it and its children ignore SIGTERM
    record      a file for its command line and the names of its variables
    slow        seconds that a completion of more than one token takes
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOLD: dict[str, Any] = json.loads(os.environ.get("FAKE_VLLM", "{}"))
ARGUMENTS = sys.argv[1:]
BORN = time.monotonic()


def option(name: str) -> str:
    return ARGUMENTS[ARGUMENTS.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = 0
    lock = threading.Lock()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.maybe_hang()
        if self.path == "/health":
            return self.reply(503 if self.is_sick() else 200, {})
        if self.path == "/version":
            return self.reply(200, {"version": "0.19.1+fake"})
        if not self.allowed():
            return self.reply(401, {"error": "Unauthorized"})
        if self.is_sick():
            return self.reply(500, {"error": {"message": "EngineDeadError"}})
        one = {"id": option("--served-model-name"), "root": ARGUMENTS[0], "max_model_len": 4096}
        return self.reply(200, {"object": "list", "data": [one]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if not self.allowed():
            return self.reply(401, {"error": "Unauthorized"})
        if time.monotonic() < BORN + TOLD.get("delay", 0) + TOLD.get("loading", 0):
            return self.reply(503, {"error": {"message": "loading"}})
        if body["model"] != option("--served-model-name"):
            return self.reply(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        with self.lock:
            Handler.asked += 1
        self.maybe_die()
        self.maybe_hang()
        if self.is_sick():
            return self.reply(500, {"error": {"message": "EngineDeadError"}})
        if body.get("max_tokens") != 1:
            time.sleep(TOLD.get("slow", 0))
        message = {"role": "assistant", "content": f"hello from {ARGUMENTS[0]}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return self.reply(
            200,
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
            },
        )

    def allowed(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {os.environ.get('VLLM_API_KEY')}"

    def maybe_die(self) -> None:
        if "die_at" in TOLD and Handler.asked >= TOLD["die_at"] and starts() <= TOLD.get("deaths", 1_000):
            print("torch.OutOfMemoryError: CUDA out of memory", flush=True)
            os._exit(1)

    def is_sick(self) -> bool:
        return Handler.asked >= TOLD.get("sick_at", float("inf")) and starts() <= TOLD.get("deaths", 1_000)

    def maybe_hang(self) -> None:
        if "hang_at" in TOLD and Handler.asked >= TOLD["hang_at"]:
            time.sleep(3600)

    def reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def starts() -> int:
    return len(Path(TOLD["starts"]).read_text()) if "starts" in TOLD else 1


def main() -> None:
    if TOLD.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # children inherit it
    if "starts" in TOLD:
        with Path(TOLD["starts"]).open("a") as file:
            file.write(".")
    if "children" in TOLD:
        children = [subprocess.Popen(["sleep", "600"], start_new_session=leave) for leave in (False, True)]
        Path(TOLD["children"]).write_text(" ".join(str(child.pid) for child in children))
    if "record" in TOLD:
        Path(TOLD["record"]).write_text(json.dumps({"arguments": ARGUMENTS, "variables": sorted(os.environ)}))
    print(f"INFO loading {ARGUMENTS[0]}", flush=True)
    time.sleep(TOLD.get("delay", 0))
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
