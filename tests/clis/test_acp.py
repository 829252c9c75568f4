"""An agent that speaks ACP, by Harbor's shorthand: looked up in a registry, driven in podman by Harbor's client."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path

import pytest

from ptb_runner import trace
from tests.clis import clis, clis_kit
from tests.fakes import https_proxy
from tests.podman import podman_kit
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents

IMAGE = "localhost/ptb-clis:acp"
VENV = "/opt/harbor-acp-venv"  # where Harbor expects its client of the protocol
PYTHON = f'#!/bin/sh\nPYTHONPATH={VENV}/lib exec python3 "$@"\n'
RECIPE = (
    f"ENV PATH={clis_kit.INSIDE}/bin:/usr/local/bin:/usr/bin:/bin\nCOPY lib {VENV}/lib\nCOPY python {VENV}/bin/python\n"
)
VERSION = clis.PINS["clis"]["gemini-cli"]
# The registry's form; what it says of Gemini CLI names an npm package instead.
ENTRY = {
    "id": "gemini",
    "name": "Gemini CLI",
    "version": VERSION,
    "description": "Google's agent",
    "distribution": {"local": {"cmd": "gemini", "args": ["--acp", "--model", "gemini-3.1-pro-preview"]}},
}
REGISTRY = "/agentclientprotocol/registry/main/gemini/agent.json"


@functools.cache
def in_podman() -> list[str]:
    """An image with what Harbor would install in it, which comes from the internet."""
    folder = clis.CACHE / "acp"
    if not (folder / "python").exists():
        python = ("--python-version", "3.11", "--only-binary", ":all:")
        command = ["uv", "pip", "install", "--quiet", "--target", str(folder / "lib"), *python, "agent-client-protocol"]
        subprocess.run(command, check=True, timeout=280)
        (folder / "python").write_text(PYTHON)
        (folder / "python").chmod(0o755)
    clis_kit.build(IMAGE, f"FROM {podman_kit.make_image()}\n{RECIPE}", folder)
    mount = f"[-v,{clis.prefix()}:{clis_kit.INSIDE}:ro]"
    return ["backend=podman", f"backend.image={IMAGE}", "backend.network=host", f"backend.run_args={mount}"]


def test_an_acp_agent_works_and_is_scored(ptb_process, llm, tmp_path, monkeypatch):
    llm.scripts["acp"] = [{"shell": "printf ok > answer.txt"}, {"say": "It is done."}]
    options = ("skip_install=true", "authenticate_method_id=gemini-api-key")
    own = (
        *("agent=custom", "agent.id=gemini-acp", f"agent.name=acp:gemini@{VERSION}", "agent.env_vars=[GEMINI_API_KEY]"),
        *(f"agent.options.{one}" for one in options),
        f"agent.env.GOOGLE_GEMINI_BASE_URL={llm.url('acp')}",
        "agent.env.GEMINI_CLI_TRUST_WORKSPACE='true'",
    )
    with https_proxy.serving({REGISTRY: json.dumps(ENTRY).encode()}, tmp_path) as proxy:
        variables = {**proxy.variables, "PTB_CACHE": str(tmp_path / "cache")}
        ran = ptb_process("benchmark=hello", "benchmark.network=public", *own, *in_podman(), env=variables)
    cell = only_cell(tmp_path)
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert proxy.asked == [REGISTRY]
    assert (cell.trial()["outcome"], cell.trial()["reward"]) == ("scored", 1)
    assert [request.key for request in llm.of("acp")] == [clis_kit.secret("GEMINI_API_KEY")] * 2
    found = trace.read(cell.folder / cell.trial()["trial_dir"])
    assert found is not None
    assert (found.agent, found.turns[-1].text) == ("gemini", "It is done.")
    assert not list(Path(tmp_path).glob(".cache")), (
        "Harbor's own place for what it looks up is the folder one stands in"
    )


def test_why_an_acp_agent_could_not_begin_is_told(ptb_process, llm, tmp_path):
    """Harbor's client wants a way to choose the model, which this agent does not offer; it says so in a file."""
    own = (
        *("agent=custom", "agent.id=gemini-acp", "agent.name=acp", "agent.model=gemini/x"),
        *("agent.env_vars=[GEMINI_API_KEY]", f"agent.options.registry_entry_path={tmp_path / 'agent.json'}"),
        *("agent.options.skip_install=true", "agent.options.authenticate_method_id=gemini-api-key"),
    )
    (tmp_path / "agent.json").write_text(json.dumps(ENTRY))
    ptb_process("benchmark=hello", "benchmark.network=public", *own, *in_podman())
    error = only_cell(tmp_path).trial()["error"]
    assert error["message"].startswith("ACP agent did not advertise a model-selection mechanism"), error
