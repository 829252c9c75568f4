"""What an agent's trace is made of: turns, each with what was said, which tools were called, and what came back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Call:
    """One use of a tool; `output` is None until it has come back."""

    tool: str
    arguments: dict[str, Any]
    output: str | None = None
    failed: bool = False
    id: str = ""


@dataclass
class Turn:
    """What one side said and did: `who` is user, agent, system, or error for what the CLI could not do."""

    who: str
    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)
    at: str | None = None  # ISO 8601
    tokens: dict[str, int] = field(default_factory=dict)  # input (cached ones included), cached, output
    thread: str = ""  # a helper that the agent started; empty: the agent itself


@dataclass
class Trace:
    """All turns of a trial, and the name of the file that they were read from."""

    turns: list[Turn]
    source: str
    agent: str = ""
    version: str = ""
    model: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
