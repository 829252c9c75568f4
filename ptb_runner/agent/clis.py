"""The four agent CLIs that have a class of ours, by Harbor's name of the agent, and where each reaches its LLM.

This module imports nothing of Harbor's: it is asked while a cell is planned.
"""

from __future__ import annotations

from ptb_runner.config import AgentConfig, Auth

CLASSES = {
    "claude-code": "ptb_runner.agent.claude_code:ClaudeCode",
    "codex": "ptb_runner.agent.codex:Codex",
    "gemini-cli": "ptb_runner.agent.gemini_cli:GeminiCli",
    "opencode": "ptb_runner.agent.opencode:OpenCode",
}
PROGRAMS = {"claude-code": "claude", "codex": "codex", "gemini-cli": "gemini", "opencode": "opencode"}
# These two put the rest behind their base URL themselves; that of an OpenAI-compatible server usually ends in /v1.
_WITHOUT_VERSION = ("claude-code", "gemini-cli")


def endpoint(agent: AgentConfig) -> dict[str, str]:
    """Harbor's fields for agent.base_url, as the CLI wants it; the first of agent.env_vars is the key for it."""
    if agent.base_url is None:
        return {}
    url = agent.base_url.rstrip("/")
    if agent.name in _WITHOUT_VERSION:
        url = url.removesuffix("/v1beta").removesuffix("/v1")
    has_key = agent.env_vars and agent.auth is Auth.api_key
    return {"base_url": url, **({"model_api_key_name": agent.env_vars[0]} if has_key else {})}
