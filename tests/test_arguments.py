"""Options and models that an agent's class refuses: found by dry_run, not by each trial."""

from __future__ import annotations

import pytest
from harbor.agents.base import BaseAgent
from harbor.agents.installed.claude_code import ClaudeCode

from ptb_runner.agent.arguments import problems, unchecked
from ptb_runner.doctor import compose
from tests.agents import Scripted
from tests.run_kit import agent

HELLO = ("benchmark=hello", "benchmark.network=public", "agent.env_vars=[]", "dry_run=true")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["agent=codex", "agent.options.reasoning_efort=high"], ["reasoning_efort: codex has no", "reasoning_effort"]),
        (["agent=codex", "agent.options.reasoning_effort=huge"], ["agent.options.reasoning_effort: ", "'xhigh'"]),
        (["agent=claude-code", "agent.options.efort=low"], ["agent.options.efort: claude-code has no such option"]),
    ],
)
def test_an_option_that_the_class_does_not_take(ptb, overrides, words):
    ran = ptb(*HELLO, *overrides)
    assert ran.code == 1
    assert all(word in ran.out + ran.err for word in words)


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini-cli", "opencode"])
def test_what_the_files_of_conf_say_is_taken(ptb, agent):
    ran = ptb(*HELLO, f"agent={agent}", "agent.reprompt.min_remaining_min=1")
    assert ran.code == 0, ran.out + ran.err


def test_opencode_is_told_whose_a_model_is(ptb):
    ran = ptb(*HELLO, "agent=opencode", "agent.model=my-model", "agent.base_url=http://127.0.0.1:8000/v1")
    assert ran.code == 2
    assert "agent.model=my-model: opencode needs to know whose it is" in ran.err
    assert "PROVIDER/my-model" in ran.err


def test_a_cli_that_the_sandbox_lacks_is_told_before(ptb, tmp_path):
    asked = (*HELLO, "agent=gemini-cli", "backend=bubblewrap", f"backend.read_only_paths=[{tmp_path}]")
    assert "lacks gemini" in " ".join(ptb(*asked).out.split())
    program = tmp_path / "bin" / "gemini"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert "lacks gemini" not in " ".join(ptb(*asked).out.split())


class Plain(Scripted):
    def __init__(self, logs_dir, max_turns=3, **more):
        super().__init__(logs_dir, **more)


class Closed(Scripted):
    def __init__(self, logs_dir, model_name=None, logger=None, extra_env=None, *, max_turns=3):
        super().__init__(logs_dir, model_name, logger)


class Bare(BaseAgent):
    """Without a constructor of its own."""


class OfHarbors(ClaudeCode):
    def __init__(self, *args, flavour="", **more):
        super().__init__(*args, **more)


@pytest.mark.parametrize(
    ("own", "options", "refused", "noted"),
    [
        (Plain, {"max_turns": 4, "command": "true"}, "", ""),
        (Plain, {"max_turn": 4}, "", "max_turn: no argument that mine:Plain names (did you mean max_turns?)"),
        (Closed, {"max_turns": 4}, "", ""),
        (Closed, {"max_turn": 4}, "max_turn: mine:Closed has no such option", ""),
        (Bare, {"max_turns": 4}, "max_turns: mine:Bare has no such option\n  it has: none", ""),
        (OfHarbors, {"flavour": "x", "max_turns": 4}, "", ""),
        (OfHarbors, {"max_turns": "many"}, "max_turns: Input should be", ""),
        (OfHarbors, {"flavor": "x"}, "", "flavor: no argument that mine:OfHarbors names (did you mean flavour?)"),
    ],
)
def test_an_option_of_a_class_of_ones_own(own, options, refused, noted):
    """Refused where its constructors tell; where one takes anything, it is told what nobody has checked."""
    config = compose(["benchmark=hello", "agent=custom", f"agent.import_path=mine:{own.__name__}"])
    config.agent.options = options
    assert [one.startswith(f"agent.options.{refused}") for one in problems(config, own)] == [True] * bool(refused)
    assert [one.startswith(f"agent.options.{noted}") for one in unchecked(config, own)] == [True] * bool(noted)


def test_the_plan_tells_what_is_not_checked_and_refuses_the_rest(ptb):
    ran = ptb(*HELLO, *agent("Scripted", comand="true"))
    assert "note: agent.options.comand: no argument that tests.agents:Scripted names (did you mean command?)" in ran.out
    ran = ptb(*HELLO, "agent=nop", "agent.options.max_turns=3")
    assert "agent.options.max_turns: nop has no such option\n  it has: none" in ran.out
