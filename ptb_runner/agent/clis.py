"""The four agent CLIs that have a class of ours, by Harbor's name of the agent, and where each reaches its LLM.

This module imports nothing of Harbor's: it is asked while a cell is planned.
"""

from __future__ import annotations

from ptb_runner.config import AgentConfig

CLASSES = {
    "claude-code": "ptb_runner.agent.claude_code:ClaudeCode",
    "codex": "ptb_runner.agent.codex:Codex",
    "gemini-cli": "ptb_runner.agent.gemini_cli:GeminiCli",
    "opencode": "ptb_runner.agent.opencode:OpenCode",
}
# What these two CLIs put behind their base URL themselves; an OpenAI-compatible server's URL usually ends in it.
_OWN_PATHS = {"claude-code": "/v1", "gemini-cli": "/v1beta"}


def endpoint(agent: AgentConfig) -> dict[str, str]:
    """Harbor's fields for agent.base_url, as the CLI wants it; the first of agent.env_vars is the key for it."""
    if agent.base_url is None:
        return {}
    url = agent.base_url.rstrip("/").removesuffix(_OWN_PATHS.get(agent.name or "", ""))
    return {"base_url": url, **({"model_api_key_name": agent.env_vars[0]} if agent.env_vars else {})}
