"""The model under test, served: what is run for it, and what this machine lacks for it.

`serve=vllm` starts a server around a cell, `serve=external` uses one that runs; server.py watches over
either, and pointing.py tells agents of it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_runner.config import (
    Auth,
    BeakerLauncherConfig,
    Config,
    ExternalServeConfig,
    Kind,
    Network,
    PodmanConfig,
    ServedConfig,
    SubmititLocalConfig,
    VllmServeConfig,
)

if TYPE_CHECKING:
    pass

HERE = "127.0.0.1"
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,63}")  # what Harbor takes as a name behind hosted_vllm/
_GPUS = "/dev/nvidia[0-9]*"
# Launchers whose cells run on another machine, which is looked at when the server is started there.
_ELSEWHERE = ("slurm", "modal", "beaker")
# The form of the API that these CLIs speak; the others go through LiteLLM.
_PROVIDERS = {"claude-code": "anthropic", "codex": "openai", "opencode": "hosted_vllm"}


def settings(config: Config) -> ServedConfig | None:
    """How the model under test is served; None: it is not."""
    return config.serve if isinstance(config.serve, ServedConfig) else None


def served_name(config: Config) -> str:
    """What the model is called at its server."""
    serve = settings(config)
    assert serve is not None
    if serve.served_name:
        return serve.served_name
    if isinstance(serve, ExternalServeConfig):
        return config.model.hub_id or config.model.id
    return re.sub(r"[^A-Za-z0-9._-]+", "-", config.model.id.rpartition("/")[2])[:63]


def agent_model(config: Config) -> str | None:
    """The agent's LLM as provider/name: the one it names itself, or the one under test: a hosted or a served one."""
    if settings(config) is None:
        return config.model.id if config.model.hosted else config.agent.model
    name = served_name(config)
    # Harbor takes no further slash behind hosted_vllm/.
    return f"{_PROVIDERS.get(config.agent.name or '', 'hosted_vllm' if _PLAIN.fullmatch(name) else 'openai')}/{name}"


# --- The command --------------------------------------------------------------------------------------


def command(config: Config, port: int | str) -> list[str]:
    """What is run to serve the model at a port."""
    serve, model = config.serve, config.model
    assert isinstance(serve, VllmServeConfig)
    given = {
        "--revision": model.revision,
        "--tokenizer-revision": serve.tokenizer_revision or model.revision,
        "--served-model-name": served_name(config),
        "--host": HERE if address(config) == HERE else "0.0.0.0",
        "--port": port,
        "--tensor-parallel-size": serve.tp,
        "--data-parallel-size": serve.dp,
        "--max-model-len": serve.max_model_len,
        "--reasoning-parser": serve.reasoning_parser,
    }
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", serve.tool_parser] if serve.tool_parser else []
    start = list(serve.command) or ["uvx", f"vllm=={serve.version}", "serve"]
    return [*start, model.hub_id or model.id, *options, *tools, *serve.extra_args]


def environment(config: Config, key: str) -> dict[str, str]:
    """The server's environment: ours, its settings and its key."""
    serve = config.serve
    assert isinstance(serve, VllmServeConfig)
    inherited = {name: value for name, value in os.environ.items() if name != "VLLM_PORT"}  # seeds its internal ports
    return {**inherited, "PYTHONUNBUFFERED": "1", **serve.env, "VLLM_API_KEY": key}


def address(config: Config) -> str:
    """Where this machine is for a program in the cell's sandboxes."""
    serve = config.serve
    if isinstance(serve, VllmServeConfig) and serve.address:
        return serve.address
    if config.backend.kind == "docker":
        return "host.docker.internal"
    if isinstance(config.backend, PodmanConfig):
        from ptb_runner.backend.podman import on_host_network

        return HERE if on_host_network(config.backend) else "host.containers.internal"
    return HERE


def server_gpus(config: Config) -> int:
    """GPUs that a server started here takes, as it is told to; none where somebody else's is asked."""
    return config.serve.tp * config.serve.dp if isinstance(config.serve, VllmServeConfig) else 0


def describe(config: Config) -> str:
    """How the model is served, in words: the command line, and variables by name only."""
    serve = settings(config)
    if isinstance(serve, ExternalServeConfig):
        return f"{served_name(config)} at {serve.base_url}"
    if isinstance(serve, VllmServeConfig):
        names = ", ".join([*serve.env, "VLLM_API_KEY (made for each start)"])
        return f"{shlex.join(command(config, serve.port or 'PORT'))}\nvariables: {names}"
    return "nothing"


def key_of(serve: ExternalServeConfig) -> str:
    """The key of a server that runs elsewhere; one that asks for none is given some word all the same."""
    return os.environ[serve.api_key_var] if serve.api_key_var else "none"


# --- What can be wrong --------------------------------------------------------------------------------


def problems(config: Config) -> Iterator[str]:
    """Faults of the configuration."""
    serve = settings(config)
    yield from _hosted_problems(config) if config.model.hosted else ()
    if serve is None:
        return
    kind, agent = serve.kind, config.agent
    if config.benchmark.kind is not Kind.harbor:
        yield f"serve={kind}: benchmark {config.benchmark.id} post-trains its model\n  type serve=none"
    if config.model.id == "none":
        yield f"serve={kind}: no model to serve\n  type model=hf model.id=ORG/NAME"
    if agent.model:
        yield (
            f"agent.model={agent.model}: the agent would not ask the model that serve={kind} serves\n"
            "  type agent.model=null, or serve=none"
        )
    if agent.base_url:
        yield f"agent.base_url: serve={kind} says where the agent's LLM is\n  type agent.base_url=null"
    if agent.name == "gemini-cli":
        yield f"agent.name=gemini-cli: speaks Google's API only, which serve={kind} does not have\n  take another agent"
    if isinstance(serve, VllmServeConfig):
        yield from _vllm_problems(config, serve)
    elif isinstance(serve, ExternalServeConfig) and not re.match(r"https?://[^/\s]+", serve.base_url):
        yield f"serve.base_url={serve.base_url}: no http(s) URL\n  for example http://node7:8000/v1"


def _hosted_problems(config: Config) -> Iterator[str]:
    model, agent = config.model.id, config.agent
    if config.benchmark.kind is not Kind.harbor:
        yield f"model.id={model}: is hosted, and benchmark {config.benchmark.id} post-trains its model\n  take another"
    if config.serve.kind != "none":
        yield f"serve={config.serve.kind}: model.id={model} is hosted by its provider\n  type serve=none, or model=hf"
    if agent.model not in (None, model):
        yield (
            f"agent.model={agent.model}: the agent would not ask the model under test, {model}\n"
            "  type agent.model=null, or model=none"
        )
    if agent.name in ("oracle", "nop"):
        yield f"model.id={model}: agent={agent.id} asks no LLM\n  choose another agent, or model=none"
    elif "/" not in model:
        yield f"model.id={model}: its provider is missing\n  for example model.id=openai/{model}"
    elif not (agent.env_vars or agent.base_url or agent.auth is Auth.subscription):
        yield (
            f"agent.env_vars: needs the name of a variable, the key with which {model} is asked\n"
            "  for example agent.env_vars=[OPENAI_API_KEY]"
        )


def _vllm_problems(config: Config, serve: VllmServeConfig) -> Iterator[str]:
    model, name = config.model.hub_id or config.model.id, served_name(config)
    there = config.launcher.kind in _ELSEWHERE and Path(model).is_absolute()  # seen when the server is started there
    if model.startswith((".", "/", "~")) and not (there or (Path(model).is_absolute() and Path(model).is_dir())):
        yield f"model.hub_id={model}: no such folder\n  give ORG/NAME, or the absolute path of a checkpoint"
    if not _PLAIN.fullmatch(name):
        yield f"serve.served_name={name}: at most 63 letters, digits, dots, dashes and underscores"
    if config.launcher.kind == "modal":
        yield "serve=vllm: the runners of launcher=modal have no GPU\n  choose another launcher, or serve=external"
    if config.backend.kind == "modal" and not serve.address:
        yield (
            "serve=vllm: the sandboxes of backend=modal do not reach a server on this machine\n"
            "  type serve.address=NAME under which they do, choose another backend, or serve=external"
        )
    if taken := [name for name in ("VLLM_API_KEY", "VLLM_PORT") if name in serve.env]:
        yield f"serve.env: {taken[0]} is the runner's to set\n  leave it out; the port is serve.port"


def warnings(config: Config) -> Iterator[str]:
    """What the user should know, but may well want."""
    serve = settings(config)
    if serve is None:
        return
    model = (config.model.hub_id or config.model.id).lower()
    if isinstance(serve, VllmServeConfig) and serve.tool_parser == "hermes" and "qwen3.5" in model:
        yield "serve.tool_parser=hermes drops the tool calls of Qwen3.5 in silence: type serve.tool_parser=qwen3_xml"
    launcher = config.launcher
    if isinstance(serve, VllmServeConfig) and isinstance(launcher, SubmititLocalConfig) and launcher.max_cells > 1:
        yield "launcher=submitit_local starts a server a cell, on the same GPUs: type launcher.max_cells=1"
    if config.benchmark.layers and config.benchmark.network is Network.none:
        yield "the task's sandboxes have no network: only an agent that runs beside the runner reaches the served model"


def machine_problems(config: Config, here: bool = False) -> list[str]:
    """What this machine lacks to serve the model, unless that is another's job; nothing is started."""
    serve = config.serve
    if not isinstance(serve, VllmServeConfig) or (config.launcher.kind in _ELSEWHERE and not here):
        return []
    return [*_program_problems(serve), *_port_problems(config, serve), *_gpu_problems(config, serve)]


def _program_problems(serve: VllmServeConfig) -> Iterator[str]:
    program = serve.command[0] if serve.command else "uvx"
    if not shutil.which(program):
        fix = (
            "name a program that is there" if serve.command else "install uv, or name another with serve.command=[...]"
        )
        yield f"serve.command: there is no program {program}\n  {fix}"


def _port_problems(config: Config, serve: VllmServeConfig) -> Iterator[str]:
    if serve.port and not _is_free(serve.port):
        given = isinstance(config.launcher, BeakerLauncherConfig) and serve.port == config.launcher.port
        fix = "type another launcher.port" if given else "leave it out, and a free one is taken"
        yield f"serve.port={serve.port}: is taken on this machine\n  {fix}"


def _gpu_problems(config: Config, serve: VllmServeConfig) -> Iterator[str]:
    """Another command may do without GPUs, or bring its own."""
    found, needed = gpus(), server_gpus(config)
    if not serve.command and found is not None and found < needed:
        yield (
            f"serve.tp={serve.tp} serve.dp={serve.dp}: takes {needed} GPUs, this machine has {found}\n"
            "  lower them, go where there are enough, or serve=external"
        )


def gpus() -> int | None:
    """GPUs that a server started here would see; None: there are some of a maker that we cannot count."""
    if Path("/dev/kfd").exists():
        return None
    found = len(list(Path("/dev").glob(Path(_GPUS).name)))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else min(found, len([name for name in visible.split(",") if name.strip()]))


def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
    """For `ptb doctor`: name, whether it failed, and what was found or what to do."""
    if settings(config) is None:
        return
    found = machine_problems(config)
    yield from (("serve", True, fault) for fault in found)
    if not found:
        yield "serve", False, describe(config).replace("\n", "; ")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody listens at, at this moment."""
    with socket.socket() as trial:
        trial.bind(("", 0))
        return trial.getsockname()[1]
