"""When an agent is prompted again, and when no more. With the real CLIs: tests/clis/test_cli_reprompt.py."""

from __future__ import annotations

import asyncio
import json

import pytest
from harbor.agents.installed import claude_code
from harbor.agents.installed.base import ApiRateLimitError
from harbor.models.agent.context import AgentContext

from ptb_runner.agent.claude_code import ClaudeCode
from tests.run_kit import agent


class Sandbox:
    async def exec(self, command: str) -> None:
        """Only copies logs."""


@pytest.fixture
def prompted(tmp_path, monkeypatch):
    """Run an agent whose CLI ends at once, or raises what `errors` says for a round; returns each round's prompt."""

    def run(errors: dict[int, Exception] | None = None, **limits) -> list[tuple[str, bool]]:
        prompts = []

        async def ends_at_once(self, instruction, environment, context):
            prompts.append((instruction, self._resume))
            if error := (errors or {}).get(len(prompts)):
                raise error

        monkeypatch.setattr(claude_code.ClaudeCode, "run", ends_at_once)
        (tmp_path / "agent").mkdir(exist_ok=True)
        wanted = {"budget_sec": 3600, "min_remaining_min": 30, "max": 5, "pause_sec": 0} | limits
        made = ClaudeCode(logs_dir=tmp_path / "agent", model_name="anthropic/claude-opus-4-8", reprompt=wanted)
        asyncio.run(made.run("Train it.", Sandbox(), AgentContext()))  # pyright: ignore[reportArgumentType]
        return prompts

    return run


def test_a_cli_that_ends_at_once_is_prompted_so_often_and_no_more(prompted):
    prompts = prompted()
    assert len(prompts) == 6
    assert prompts[0] == ("Train it.", False)
    assert all(resumed for _, resumed in prompts[1:])
    assert "1 hour of your 1 hour are left" in prompts[1][0] or "minutes of your 1 hour are left" in prompts[1][0]


def test_no_prompt_that_would_come_too_late(prompted):
    assert len(prompted(min_remaining_min=60)) == 1
    assert len(prompted(pause_sec=1801)) == 1  # without waiting for it


def test_an_error_of_the_first_round_is_the_trials_and_a_later_one_ends_the_prompting(prompted, tmp_path):
    with pytest.raises(ApiRateLimitError):
        prompted({1: ApiRateLimitError("slower")})
    assert len(prompted({3: ApiRateLimitError("slower")})) == 3
    rounds = json.loads((tmp_path / "rounds.json").read_text())
    assert [one["error"] for one in rounds] == [None, None, "ApiRateLimitError"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (agent("Honest"), "cannot be prompted again"),
        (["agent=claude-code", "benchmark.agent_hours=null"], "the agent's time is not known"),
        (["agent=codex", "budget.hours=0.5"], "so much is never left"),
    ],
)
def test_what_cannot_be_is_refused(ptb, overrides, words):
    ran = ptb("benchmark=hello", *overrides, "agent.reprompt.min_remaining_min=30", "dry_run=true")
    assert ran.code == 2
    assert words in ran.err


@pytest.mark.parametrize("option", ["max=3", "pause_sec=5"])
def test_a_limit_of_prompts_that_never_come_is_refused(ptb, option):
    ran = ptb("benchmark=hello", "benchmark.network=public", "agent=codex", f"agent.reprompt.{option}", "dry_run=true")
    assert ran.code == 2
    assert f"agent.reprompt.{option.partition('=')[0]}: does nothing without" in ran.err
