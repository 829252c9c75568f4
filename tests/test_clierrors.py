"""Why a CLI failed: by what the four CLIs really say of each failure (seen against the scripted LLM server)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ptb_runner.clierrors import explained
from ptb_runner.outcome import trial_record

FORMS = {
    "claude-code.txt": lambda words: {"type": "result", "is_error": True, "result": words},
    "codex.txt": lambda words: {"type": "turn.failed", "error": {"message": words}},
    "gemini-cli.txt": lambda words: {"type": "result", "status": "error", "error": {"message": words}},
    "opencode.txt": lambda words: {"type": "error", "error": {"data": {"message": words}}},
}


def make_trial(folder: Path, log: str, words: str) -> Path:
    (folder / "agent").mkdir(parents=True)
    (folder / "agent" / log).write_text(json.dumps(FORMS[log](words)) + "\n")
    return folder


def raised(kind: str = "NonZeroAgentExitCodeError", message: str = "") -> dict[str, str]:
    said = (
        message or "Command failed (exit 1): codex exec -- 'a rate limit of 3, quota'\nstdout: 401 tokens\nstderr: None"
    )
    return {"exception_type": kind, "exception_message": said, "occurred_at": "2026-01-02T03:04:25Z"}


@pytest.mark.parametrize(
    ("log", "words", "kind"),
    [
        ("claude-code.txt", "Invalid API key · Fix external API key", "AgentAuthenticationError"),
        (
            "gemini-cli.txt",
            '[API Error: {"error":{"code":401,"status":"UNAUTHENTICATED"}}]',
            "AgentAuthenticationError",
        ),
        ("opencode.txt", "invalid x-api-key", "AgentAuthenticationError"),
        ("claude-code.txt", "There's an issue with the selected model (x). It may not exist", "ModelNotFoundError"),
        ("codex.txt", "unexpected status 404 Not Found: The model `x` does not exist", "ModelNotFoundError"),
        ("opencode.txt", "model: no-such-model", "ModelNotFoundError"),
        ("codex.txt", "exceeded retry limit, last status: 429 Too Many Requests", "ApiRateLimitError"),
        ("claude-code.txt", "API Error: Request rejected (429) · exceeded your current quota", "ApiUsageLimitError"),
        ("codex.txt", "You've hit your usage limit.", "ApiUsageLimitError"),
        ("claude-code.txt", "API Error: 500 Internal server error.", "ApiInternalServerError"),
        ("codex.txt", "exceeded retry limit, last status: 500 Internal Server Error", "ApiInternalServerError"),
        ("claude-code.txt", "API Error: 529 Overloaded", "ApiOverloadedError"),
        ("claude-code.txt", "Prompt is too long", "ContextWindowExceededError"),
        ("codex.txt", "stream disconnected before completion", "NetworkConnectionError"),
        ("codex.txt", "something never seen", "NonZeroAgentExitCodeError"),
    ],
)
def test_a_failure_has_a_name_and_one_line(tmp_path, log, words, kind):
    found = explained(raised(), make_trial(tmp_path / "t", log, words))
    assert (found["exception_type"], found["exception_message"]) == (kind, f"{words} (exit code 1)")


def test_what_harbor_knows_keeps_its_name(tmp_path):
    found = explained(raised("ApiRateLimitError"), make_trial(tmp_path / "t", "codex.txt", "status 500"))
    assert (found["exception_type"], found["exception_message"]) == ("ApiRateLimitError", "status 500 (exit code 1)")
    other = raised("RuntimeError", "the sandbox is gone")
    assert explained(other, tmp_path / "t") == other


def test_a_crash_without_a_word_of_the_cli_shows_what_was_printed_last(tmp_path):
    message = (
        "Command failed (exit 127): claude --print\nstdout: None\nstderr: a warning\nbash: claude: command not found\n"
    )
    found = explained(raised(message=message), tmp_path)
    assert found["exception_message"] == "bash: claude: command not found (exit code 127)"
    assert found["exception_type"] == "NonZeroAgentExitCodeError"
    silent = explained(raised(message="Command failed (exit 3): claude\nstdout: None\nstderr: None"), tmp_path)
    assert silent["exception_message"] == "it printed nothing (exit code 3)"


@pytest.mark.parametrize(
    ("words", "outcome"), [("last status: 500 Internal Server Error", "infra_error"), ("Prompt is too long", "scored")]
)
def test_work_that_a_storm_broke_off_is_not_scored_and_a_full_context_is_the_agents_own(tmp_path, words, outcome):
    """Harbor gives both the same name, and verifies."""
    folder = make_trial(tmp_path / "t__001", "codex.txt", words)
    result = {
        "exception_info": raised(),
        "agent_result": {"n_output_tokens": 20},
        "verifier": {"started_at": "2026-01-02T03:05:00Z", "finished_at": "2026-01-02T03:06:00Z"},
        "verifier_result": {"rewards": {"reward": 0.5}},
        "agent_execution": {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:04:25Z"},
    }
    (folder / "result.json").write_text(json.dumps(result))
    assert trial_record(folder, 1)["outcome"] == outcome


def test_what_could_not_be_installed_is_told_as_that(tmp_path):
    failed = raised(message="Command failed (exit 1): npm install\nstdout: None\nstderr: Error: NVM failed to load")
    times = {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:04:25Z"}
    (tmp_path / "result.json").write_text(json.dumps({"agent_setup": times, "exception_info": failed}))
    error = trial_record(tmp_path, 1)["error"]
    assert error["phase"] == "agent_setup"
    said = "the agent could not be installed in the sandbox: Error: NVM failed to load (exit code 1)"
    assert error["message"] == said


@pytest.mark.parametrize("verifier", ["reward", "no_model", "no reward"])
@pytest.mark.parametrize("kind", [None, "AgentTimeoutError"])
@pytest.mark.parametrize("answered", [False, True])
def test_a_cli_that_never_reached_its_llm_did_nothing_that_could_be_scored(tmp_path, answered, kind, verifier):
    """Also when it ends well, or waits until its time is up."""
    folder = make_trial(tmp_path / "t__001", "codex.txt", "Reconnecting... waiting for network")
    if answered:
        with (folder / "agent" / "codex.txt").open("a") as log:
            log.write(json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": "Done."}}))
    result = {
        "exception_info": kind and raised(kind, "timed out"),
        "verifier": {"started_at": "2026-01-02T03:05:00Z", "finished_at": "2026-01-02T03:06:00Z"},
        "verifier_result": {"rewards": {"reward": 0.0} if verifier == "reward" else {}},
        "agent_execution": {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:04:25Z"},
    }
    (folder / "result.json").write_text(json.dumps(result))
    if verifier == "no_model":
        (folder / "verifier").mkdir()
        (folder / "verifier" / "verdict.json").write_text('{"outcome": "no_model", "reason": "nothing was left"}')
    record = trial_record(folder, 1)
    if answered:
        assert record["outcome"] in ("scored", "agent_timeout", "no_model", "eval_failed")
        return
    assert (record["outcome"], record["reward"], record["error"]["phase"]) == ("infra_error", None, "agent")
    assert record["error"]["type"] == "LlmSilentError"
    assert record["error"]["message"] == "the agent's LLM never answered: Reconnecting... waiting for network"


@pytest.mark.parametrize(
    ("log", "last", "flags"),
    [
        ("codex.txt", '{"type": "error", "message": "waiting for network"}', ["agent_error:NetworkConnectionError"]),
        (
            "gemini-cli.txt",
            "Attempt 3 failed with status 429. Retrying with backoff... ApiError: limit\n    at f (x.js:1)\n}",
            ["agent_error:ApiRateLimitError"],
        ),
        ("codex.txt", '{"type": "item.started", "item": {"id": "1", "type": "command_execution"}}', []),
    ],
)
def test_a_timeout_while_the_llm_was_failing_says_so(tmp_path, log, last, flags):
    folder = make_trial(tmp_path / "t__001", log, "an error that passed")
    work = {"type": "item.completed", "role": "assistant", "item": {"type": "agent_message", "text": "I begin."}}
    (folder / "agent" / log).write_text(f"{json.dumps(work)}\n{last}\n")
    result = {"exception_info": raised("AgentTimeoutError", "timed out"), "verifier_result": {"rewards": {"reward": 0}}}
    (folder / "result.json").write_text(json.dumps(result | {"verifier": {}, "agent_result": {"n_output_tokens": 9}}))
    record = trial_record(folder, 1)
    assert (record["outcome"], record["reward"], record["flags"]) == ("agent_timeout", 0, flags)
