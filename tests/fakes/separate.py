"""Fakes that run in a process of their own, so that clients meet a real server, and that tests give orders by HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def start(module: str, folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
    """Start `python -m module --state folder`, and wait until it says `ready` and some words, which are returned."""
    command = [sys.executable, "-m", module, "--state", str(folder), *arguments]
    file = folder.with_suffix(".log")
    with file.open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout
    first, *words = process.stdout.readline().split() or [""]
    if first != "ready":
        raise RuntimeError(f"{module} did not start: {file.read_text()}")
    return process, words


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(30)


def order(method: str, url: str, content: Any = None) -> bytes:
    """Send something as JSON, and return what is answered."""
    data = None if content is None else json.dumps(content).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=data, method=method), timeout=30) as response:
        return response.read()
