"""What tests with the real agent CLIs share: pointing one at a scripted LLM, in a sandbox that has it."""

from __future__ import annotations

from pathlib import Path

from tests.clis import clis
from tests.fakes.llm_server import Server

# The model by which each CLI asks the loopback server, and the key that it takes.
MODELS = {
    "claude-code": "anthropic/claude-opus-4-8",
    "codex": "openai/gpt-5.5",
    "gemini-cli": "gemini/gemini-3-pro-preview",
    "opencode": "hosted_vllm/qwen3-max",
}
KEYS = {
    "claude-code": "ANTHROPIC_API_KEY",
    "codex": "OPENAI_API_KEY",
    "gemini-cli": "GEMINI_API_KEY",
    "opencode": "HOSTED_VLLM_API_KEY",
}
PROTOCOLS = {"claude-code": "anthropic", "codex": "responses", "gemini-cli": "gemini", "opencode": "chat"}
NAMES = tuple(MODELS)


def secret(name: str) -> str:
    """A key long and odd enough to be found, and to be redacted without harm."""
    return f"made-up-{name.lower()}-7Qx4vZr1Lw9sKd3f"


def talking_to(server: Server, script: str, agent: str) -> list[str]:
    """Overrides by which an agent talks to a script of the server."""
    return [
        f"agent={agent}",
        f"agent.model={MODELS[agent]}",
        f"agent.env_vars=[{KEYS[agent]}]",
        f"agent.base_url={server.url(script)}/v1",
        "benchmark.network=public",
        "retry.wait_sec=0",
    ]


def in_bubblewrap() -> list[str]:
    """Overrides for the bubblewrap sandbox with the CLIs in it."""
    return ["backend=bubblewrap", f"backend.read_only_paths=[{clis.prefix()}]"]


def agent_logs(cell: Path) -> Path:
    """The folder with what the agent logged in the only trial of a cell."""
    (found,) = cell.glob("job/*__*/agent")
    return found
