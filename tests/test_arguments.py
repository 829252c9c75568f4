"""Options and models that an agent's class refuses: found by dry_run, not by each trial."""

from __future__ import annotations

import pytest

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
