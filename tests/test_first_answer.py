"""When an agent is ended because its LLM does not answer. With the real CLIs: tests/clis/test_cli_failures.py."""

from __future__ import annotations

import asyncio
import json

import pytest
from harbor.agents.installed import codex
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext

from ptb_runner import clierrors
from ptb_runner.agent.codex import Codex
from ptb_runner.agent.first_answer import LlmSilentError

WAITS = json.dumps({"type": "error", "message": "Reconnecting... waiting for network"})
SAYS = json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": "I begin."}})


class Sandbox:
    """Has a log, and nothing else."""

    def __init__(self, log: str | None) -> None:
        self.log = log

    async def exec(self, command: str, timeout_sec: int) -> ExecResult:
        assert command.endswith(" -- /logs/agent/codex.txt")
        return ExecResult(stdout=self.log, stderr="", return_code=int(self.log is None))


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """Run an agent whose CLI takes a while; whether it came to its end."""

    def run(log: str | None, minutes: float | None) -> bool:
        ended = []

        async def works(*_) -> None:
            await asyncio.sleep(0.2)
            ended.append(True)

        monkeypatch.setattr(codex.Codex, "run", works)
        made = Codex(logs_dir=tmp_path, model_name="openai/gpt-5.5", first_answer_min=minutes)
        asyncio.run(made.run("Train it.", Sandbox(log), AgentContext()))  # pyright: ignore[reportArgumentType]
        return bool(ended)

    return run


def test_an_agent_whose_llm_is_silent_is_ended_with_the_reason(outcome):
    with pytest.raises(LlmSilentError, match="never answered: Reconnecting"):
        outcome(WAITS, 0.0001)
    with pytest.raises(LlmSilentError, match="names no error"):
        outcome("", 0.0001)
    assert LlmSilentError.__name__ == clierrors.SILENT


@pytest.mark.parametrize(("log", "minutes"), [(f"{WAITS}\n{SAYS}", 0.0001), (None, 0.0001), (WAITS, 10), (WAITS, None)])
def test_one_that_has_answered_or_has_time_works_on(outcome, log, minutes):
    assert outcome(log, minutes)


def test_an_interrupt_reaches_the_cli(tmp_path, monkeypatch):
    ended = []

    async def works(*_) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(True)

    async def interrupted() -> None:
        made = Codex(logs_dir=tmp_path, model_name="openai/gpt-5.5", first_answer_min=30)
        async with asyncio.timeout(0.05):
            await made.run("Train it.", Sandbox(None), AgentContext())  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(codex.Codex, "run", works)
    with pytest.raises(TimeoutError):
        asyncio.run(interrupted())
    assert ended == [True]


def test_it_is_refused_where_nobody_can_tell(ptb):
    ran = ptb("benchmark=hello", "agent=oracle", "agent.first_answer_min=5", "dry_run=true")
    assert ran.code == 2
    assert "agent.first_answer_min: nobody can tell when the LLM of agent=oracle has answered" in ran.err
