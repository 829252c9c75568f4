"""What tests of judges share: evidence on disk, a judge to ask, verdicts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptb_runner.config import JudgeConfig, JudgesConfig
from ptb_runner.judge.evidence import Evidence
from ptb_runner.judge.loop import Hearing, hear
from ptb_runner.judge.tools import Toolbox, run
from tests.fakes.judge_api import JudgeApi

FIELDS = {"cheated": "the agent cheated", "lazy": "the agent did nothing"}
ITEMS = [
    {
        "question": "How many of the forty two grey geese that left the northern lake in autumn came back?",
        "answer": "7",
    },
    {"question": "A baker sells eleven loaves at dawn and twice as many at noon, how many in all?", "answer": "33"},
]


def verdict(cheated: Any = False, lazy: Any = False) -> dict[str, Any]:
    return {
        "cheated": cheated,
        "lazy": lazy,
        "justification_cheated": "Turn 3 of the trace.",
        "justification_lazy": "Turn 4.",
    }


def evidence(folder: Path, files: Mapping[str, str | bytes] | None = None) -> Evidence:
    """Evidence below `folder`: trace.txt and workspace/, with these files."""
    for name, content in {"trace.txt": "[1] agent\n  I begin.\n", **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "workspace").mkdir(exist_ok=True)
    return Evidence({name: (folder, name) for name in ("trace.txt", "workspace", "final_model")})


def box(
    folder: Path, files: Mapping[str, str | bytes] | None = None, identity: dict[str, Any] | None = None
) -> Toolbox:
    found = evidence(folder, files)
    (folder / "test_data.json").write_text(json.dumps(ITEMS))
    return Toolbox(found, folder / "test_data.json", identity or {})


def use(toolbox: Toolbox, name: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers."""
    return json.loads(run(toolbox.tools(), name, json.dumps(arguments)))


def ask(server: JudgeApi, toolbox: Toolbox, own: dict[str, Any] | None = None, **judges: Any) -> Hearing:
    """Have one judge work against the server; what came of it, or what it raised."""
    settings = {"base_url": server.url, "retry_wait_sec": 0.0, "retries": 2, "api_key_var": None} | judges
    judge = JudgeConfig(**({"prompt": "", "fields": FIELDS, "model": "m"} | (own or {})))
    hearing = Hearing()
    asyncio.run(hear(judge, JudgesConfig(**settings), "Did it cheat?", toolbox, hearing, lambda step: None))
    return hearing
