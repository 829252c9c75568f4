"""conf/agent/ by what reaches the LLM and by the CLI's own log, not by our configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clis.clis_kit import agent_logs, in_bubblewrap, talking_to
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents

SCRIPT = [{"think": "Two letters.", "shell": "printf ok > answer.txt"}, {"say": "It is done."}]


@pytest.fixture
def first(ptb, llm):
    """first(agent, ...overrides): the first request of its script, the folder with its logs, the cell's result."""

    def go(agent: str, *overrides: str) -> tuple[dict[str, Any], Path, dict[str, Any]]:
        llm.scripts["options"] = SCRIPT
        ran = ptb("benchmark=hello", *talking_to(llm, "options", agent), *in_bubblewrap(), *overrides)
        cell = only_cell()
        assert ran.code == 0, ran.out + ran.err + cell.log
        return llm.of("options")[0].body, agent_logs(cell.folder), cell.result

    return go


def tool(body: dict[str, Any], name: str) -> str:
    return next(json.dumps(tool) for tool in body["tools"] if name in (tool.get("name"), tool.get("type")))


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def test_claude_code(first):
    body, logs, _ = first("claude-code")
    assert body["output_config"] == {"effort": "high"}
    assert body["thinking"]["display"] == "summarized"
    assert "max 36000000" in tool(body, "Bash")  # milliseconds of one command
    (began, *_, ended) = events(logs / "claude-code.txt")  # stream-json
    assert began["claude_code_version"] == "2.1.332"
    assert (ended["type"], ended["num_turns"]) == ("result", 2)
    assert began["permissionMode"] == "bypassPermissions"


@pytest.mark.parametrize("agent", ["codex", "codex-low", "codex-xhigh"])
def test_codex(agent, first):
    body, logs, _ = first("codex", *(["agent.options.reasoning_effort=" + agent[6:]] if agent != "codex" else []))
    assert body["reasoning"] == {"effort": agent[6:] or "medium", "summary": "detailed"}
    assert '"external_web_access": true' in tool(body, "web_search")
    said = [event["item"] for event in events(logs / "codex.txt") if event["type"] == "item.completed"]
    assert said[0] == {"id": "item_0", "type": "reasoning", "text": "Two letters."}


def test_gemini_cli(first):
    body, logs, _ = first("gemini-cli")
    assert body["generationConfig"]["thinkingConfig"]["includeThoughts"] is True
    streamed = events(logs / "gemini-cli.txt")  # stream-json
    assert [event["type"] for event in streamed] == ["init", "message", "tool_use", "tool_result", "message", "result"]
    assert streamed[2]["parameters"]["command"] == "printf ok > answer.txt"
    assert "YOLO mode is enabled" in (logs / "gemini-cli.txt").read_text()
    trace = json.loads((logs / "trajectory.json").read_text())  # the stream leaves thoughts out, the session has them
    assert "Two letters." in json.dumps(trace)


def test_opencode_is_given_its_provider_from_the_configuration(first, llm):
    body, logs, _ = first("opencode", "agent.model=acme/qwen3-max", "agent.options.opencode_config.username=tester")
    assert body["model"] == "qwen3-max"
    assert llm.of("options")[0].key == "made-up-hosted_vllm_api_key-7Qx4vZr1Lw9sKd3f"
    trial_log = (logs.parent / "trial.log").read_text()
    written = trial_log[trial_log.index("opencode.json") - 2000 : trial_log.index("opencode.json")]
    for word in ('"acme"', '"qwen3-max"', llm.url("options"), "{env:HOSTED_VLLM_API_KEY}", '"*": "allow"', "tester"):
        assert word in written
    assert "7Qx4vZr1Lw9sKd3f" not in trial_log
    assert all(event["type"] != "error" for event in events(logs / "opencode.txt"))


@pytest.mark.parametrize("agent", ["claude-code", "gemini-cli"])
def test_what_really_ran_is_recorded_when_the_newest_is_asked_for(agent, first):
    _, _, result = first(agent, "pins=latest")
    own = {"claude-code": "2.1.332", "gemini-cli": "0.61.0"}[agent]
    assert result["trials"][0]["agent_version"] == own
    assert result["provenance"]["agent_version"] == own


def test_another_version_than_the_pinned_one_is_not_passed_off_as_it(ptb, llm):
    """The image has another one, and nothing can be downloaded here: no trial, rather than the wrong one."""
    llm.scripts["options"] = SCRIPT
    ran = ptb("benchmark=hello", *talking_to(llm, "options", "codex"), *in_bubblewrap(), "agent.version=0.98.0")
    assert ran.code == 1
    cell = only_cell()
    assert cell.outcomes == ["infra_error"]
    assert cell.trial()["error"]["phase"] == "agent_setup"
    assert llm.of("options") == []
