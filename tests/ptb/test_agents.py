"""conf/agent/: Harbor takes each file's name, options and model, and nothing of the host's comes along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ptb_runner.config import Config
from ptb_runner.doctor import compose
from ptb_runner.harbor_job import agent_fields

OPTIONS = {
    "claude-code": "--effort high --thinking-display summarized",
    "codex": "-c model_reasoning_summary=detailed -c web_search=live",
    "codex-low": "model_reasoning_effort=low",
    "codex-high": "model_reasoning_effort=high",
    "codex-xhigh": "model_reasoning_effort=xhigh",
    "gemini-cli": "",
    "opencode": "",
    "glm-5": "",
    "qwen3-max": "",
}
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "ZAI_API_KEY", "DASHSCOPE_API_KEY", "HF_TOKEN")


def made(name: str, tmp_path: Path, *overrides: str) -> tuple[Config, Any]:
    from harbor.agents.factory import AgentFactory
    from harbor.models.trial.config import AgentConfig

    config = compose([f"agent={name}", *overrides])
    return config, AgentFactory.create_agent_from_config(
        AgentConfig.model_validate(agent_fields(config)), logs_dir=tmp_path
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_harbor_makes_the_agent_and_passes_only_its_own_key(name, tmp_path, monkeypatch):
    for key in KEYS:
        monkeypatch.setenv(key, f"made-up-{key}-0123456789")
    config, agent = made(name, tmp_path)
    assert agent.version() == config.pins.clis[config.agent.name or ""]
    assert agent.model_name == config.agent.model
    assert OPTIONS[name] in agent.build_cli_flags()
    given = {**agent.model_connection.env, **agent._extra_env}
    passed = {key for key, value in given.items() if "made-up" in str(value)}
    assert passed == set(config.agent.env_vars)
    assert set(config.agent.env) <= set(given)


def test_claude_may_run_one_command_for_ten_hours():
    assert compose(["agent=claude-code"]).agent.env["BASH_MAX_TIMEOUT_MS"] == "36000000"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("opencode", ['"*": "allow"']),
        ("glm-5", ['"zai"', "api.z.ai", "{env:ZAI_API_KEY}"]),
        ("qwen3-max", ['"dashscope"', "{env:DASHSCOPE_API_KEY}"]),
    ],
)
def test_opencode_is_told_its_provider_and_asks_nobody(name, words, tmp_path, monkeypatch):
    for key in KEYS:
        monkeypatch.setenv(key, "made-up-0123456789")
    _, agent = made(name, tmp_path)
    command = agent._build_register_config_command()
    for text in words:
        assert text in command
    assert "made-up" not in command


def test_the_newest_cli_has_no_version(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "made-up-0123456789")
    assert "version" not in agent_fields(compose(["agent=codex", "pins=latest"]))["kwargs"]
    _, agent = made("codex", tmp_path, "agent.version=0.98.0")
    assert agent.version() == "0.98.0"


def test_a_missing_key_is_told_by_name(ptb, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    ran = ptb("benchmark=hello", "agent=gemini-cli")
    assert ran.code == 2
    assert "GEMINI_API_KEY" in ran.err
