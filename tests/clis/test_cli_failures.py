"""What becomes of trials whose CLI or LLM fails: outcome, name and one line, by the real CLIs."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.clis.clis_kit import NAMES, in_bubblewrap, talking_to
from tests.fakes import loopback
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents

WORK = {
    "shell": "printf ok > answer.txt"
}  # right, and verified: a failure of the LLM's must not be scored all the same
QUOTA = {"kind": "insufficient_quota", "message": "You exceeded your current quota, please check your billing details."}
FEW_RETRIES = "+agent.env.CLAUDE_CODE_MAX_RETRIES='1'"


def run(ptb, llm, agent, script, *more):
    """The only trial of a CLI that gets these answers."""
    llm.scripts["x"] = script
    few = [FEW_RETRIES] if agent == "claude-code" else []
    ptb("benchmark=hello", *talking_to(llm, "x", agent), *in_bubblewrap(), *few, *more)
    return only_cell().trial()


@pytest.mark.parametrize("agent", NAMES)
def test_a_bad_key_is_no_score_and_not_tried_again(agent, ptb, llm):
    trial = run(ptb, llm, agent, [{"status": 401, "message": "invalid x-api-key"}])
    assert (trial["outcome"], trial["reward"]) == ("infra_error", None)
    assert trial["error"]["type"] == "AgentAuthenticationError"
    assert "\n" not in trial["error"]["message"]
    assert not (only_cell().folder / "superseded").exists()


@pytest.mark.parametrize("agent", NAMES)
def test_an_unknown_model_is_told(agent, ptb, llm):
    trial = run(ptb, llm, agent, [{"status": 404, "message": "model: no-such-model"}])
    assert (trial["outcome"], trial["error"]["type"]) == ("infra_error", "ModelNotFoundError")


@pytest.mark.parametrize(
    ("agent", "fault", "kind"),
    [
        ("claude-code", {"status": 429, "message": "exceeded your rate limit"}, "ApiRateLimitError"),
        ("codex", {"status": 429, "message": "exceeded your rate limit"}, "ApiRateLimitError"),
        ("claude-code", {"status": 429, **QUOTA}, "ApiUsageLimitError"),
        ("codex", {"status": 429, **QUOTA}, "ApiUsageLimitError"),
        ("claude-code", {"status": 500, "message": "Internal server error"}, "ApiInternalServerError"),
        ("codex", {"status": 500, "message": "Internal server error"}, "ApiInternalServerError"),
    ],
)
def test_what_breaks_off_in_mid_run_is_not_scored(agent, fault, kind, ptb, llm):
    trial = run(ptb, llm, agent, [WORK, fault])
    assert (trial["outcome"], trial["reward"], trial["error"]["type"]) == ("infra_error", None, kind)
    assert not (only_cell().folder / "superseded").exists()  # the agent had worked


def test_a_storm_before_the_first_answer_is_tried_again(ptb, llm):
    trial = run(ptb, llm, "claude-code", [{"status": 529, "message": "Overloaded", "times": 2}, {"say": "Done."}])
    assert (trial["outcome"], trial["error"]) == ("scored", None)
    assert len(list((only_cell().folder / "superseded").iterdir())) == 1


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini-cli"])
def test_work_before_a_full_context_counts(agent, ptb, llm):
    trial = run(
        ptb, llm, agent, [WORK, {"status": 400, "message": "prompt is too long: 210000 tokens > 200000 maximum"}]
    )
    assert (trial["outcome"], trial["reward"]) == ("scored", 1)
    assert trial["flags"] == ["agent_error:ContextWindowExceededError"]


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini-cli"])
def test_a_cli_that_waits_for_an_llm_that_is_not_there_is_ended(agent, ptb, llm):
    nowhere = ("agent.base_url=http://127.0.0.1:9/v1", "agent.first_answer_min=0.3")
    ptb("benchmark=hello", *talking_to(llm, "x", agent), *in_bubblewrap(), *nowhere)
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"], trial["error"]["type"]) == ("infra_error", None, "LlmSilentError")
    assert re.search(r"^the agent's LLM never answered: .+ \(ended after 18 seconds\)$", trial["error"]["message"])
    assert 18 <= trial["durations_sec"]["agent"] < 120
    assert not (only_cell().folder / "superseded").exists()


@pytest.mark.parametrize(
    ("agent", "kind", "page"),
    [("opencode", "text/html", b"<html>Welcome</html>"), ("gemini-cli", "text/event-stream", b"")],
)
def test_a_cli_that_takes_any_page_for_its_llms_answer_is_told_apart(agent, kind, page, ptb, llm):
    """From a proxy, say: OpenCode asks again and again and calls nothing an error, Gemini CLI ends well."""
    with serving_page(kind, page) as url:
        elsewhere = (f"agent.base_url={url}/v1", "agent.first_answer_min=0.5")
        ptb("benchmark=hello", *talking_to(llm, "x", agent), *in_bubblewrap(), *elsewhere)
    trial = only_cell().trial()
    assert (trial["outcome"], trial["error"]["type"]) == ("infra_error", "LlmSilentError")


@contextlib.contextmanager
def serving_page(kind: str, page: bytes) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with loopback.running(ThreadingHTTPServer(("127.0.0.1", 0), Page)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def run_broken(ptb, llm, folder, script):
    """The only trial of a program that is called codex."""
    (folder / "bin").mkdir(parents=True)
    version = '[ "$1" = --version ] && echo "codex-cli 0.171.0" && exit'
    (folder / "bin" / "codex").write_text(f"#!/bin/bash\n{version}; {script}\n")
    (folder / "bin" / "codex").chmod(0o755)
    llm.scripts["x"] = [WORK]
    ptb("benchmark=hello", *talking_to(llm, "x", "codex"), f"backend.read_only_paths=[{folder}]")
    return only_cell().trial()


def test_a_cli_that_crashes_at_its_start_says_how(ptb, llm, tmp_path):
    trial = run_broken(ptb, llm, tmp_path / "broken", 'echo "cannot load libfoo.so" >&2; exit 127')
    assert (trial["outcome"], trial["reward"]) == ("infra_error", None)
    assert trial["error"]["message"] == "cannot load libfoo.so (exit code 127)"


def test_a_cli_that_ends_well_without_its_llm_is_not_scored(ptb, llm, tmp_path):
    """Not as an agent that did nothing, whose 0 would count."""
    trial = run_broken(ptb, llm, tmp_path / "broken", """echo '{"type": "error", "message": "no route"}'; exit 0""")
    assert (trial["outcome"], trial["reward"], trial["error"]["type"]) == ("infra_error", None, "LlmSilentError")
    assert trial["error"]["message"] == "the agent's LLM never answered: no route"


def test_a_cli_that_never_ends_is_ended_and_its_work_counts(ptb, llm):
    trial = run(ptb, llm, "codex", [WORK, {"shell": "sleep 1000"}], "budget.hours=0.004")
    assert (trial["outcome"], trial["reward"]) == ("agent_timeout", 1)


def test_training_left_in_the_background_is_ended_with_the_agent(ptb, llm):
    left = "cp -r base_model final_model; setsid nohup sleep 1234 < /dev/null > /dev/null 2>&1 & sleep 0.2"
    llm.scripts["x"] = [{"shell": left}, {"say": "It trains on by itself."}]
    ptb("benchmark=addition", "benchmark.evaluation.limit=10", *talking_to(llm, "x", "codex"), *in_bubblewrap())
    trial = only_cell().trial()
    assert trial["outcome"] == "scored"
    assert "left_processes:1" in trial["flags"]
    told = json.loads((only_cell().folder / trial["trial_dir"] / "left_processes.json").read_text())
    assert told == ["sleep 1234"]
