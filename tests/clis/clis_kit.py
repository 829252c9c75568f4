"""What tests with the real agent CLIs share: pointing one at a scripted LLM, in a sandbox that has it."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from tests.clis import clis
from tests.fakes.llm_server import Server
from tests.podman import podman_kit

# The model by which each CLI asks the loopback server, and the key that it takes.
MODELS = {
    "claude-code": "anthropic/claude-opus-4-8",
    "codex": "openai/gpt-5.5",
    "gemini-cli": "gemini/gemini-3.1-pro-preview",
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


# --- Podman -------------------------------------------------------------------------------------------

INSIDE = "/opt/clis"
IMAGE = "localhost/ptb-clis:mounted"


@functools.cache
def in_podman() -> list[str]:
    """Overrides for podman: the small base image, with the CLIs mounted where its PATH looks first."""
    base = podman_kit.make_image()
    build(IMAGE, f"FROM {base}\nENV PATH={INSIDE}/bin:/usr/local/bin:/usr/bin:/bin\n")
    mount = f"[-v,{clis.prefix()}:{INSIDE}:ro]"
    return ["backend=podman", f"backend.image={IMAGE}", "backend.network=host", f"backend.run_args={mount}"]


def build(tag: str, recipe: str, context: Path | None = None) -> None:
    """Build an image from a recipe and what lies in a folder."""
    command = ["podman", "build", "--quiet", "--tag", tag, "--file", "-", str(context or Path(__file__).parent)]
    environment = {**os.environ, **podman_kit.podman().variables}
    done = subprocess.run(command, input=recipe, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
