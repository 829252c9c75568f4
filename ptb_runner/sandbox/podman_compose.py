"""Compose tasks on Harbor's own podman and docker environments, with what they need laid over from outside.

    environment.import_path = "ptb_runner.sandbox.podman_compose:PodmanCompose"    (or DockerCompose)

The overlay labels every service with its owner and stops it at once. Where no network can be made it also gives all
services the host's, under their own names, and rewrites the health checks that podman's interface would tear apart.

Podman leaves health checks to systemd's timers, and podman-compose waits for a service's health with podman 4.6 and
newer only. So the checks are run from here until the services are well that others wait for.
"""

import asyncio
import json
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, override

import yaml
from harbor.environments.base import ExecResult
from harbor.environments.definition import has_agent_environment_definition
from harbor.environments.docker.docker import DockerEnvironment, DockerOptions
from harbor.environments.podman import PodmanEnvironment as HarborPodman
from pydantic import Field

from ptb_runner.hf_cache import READ_ONLY
from ptb_runner.sandbox.engine_labels import labels
from ptb_runner.sandbox.environment import HANDOFF, hf_layer
from ptb_runner.sandbox.podman_cli import Podman

HEALTH_SEC = 1.0
_SANDBOX = "ptb.sandbox"  # the label that tells the containers of one sandbox from others


class ComposeOptions(DockerOptions):
    """The `environment.kwargs` of compose tasks."""

    host_network: bool = Field(default=False, description="Give every service the host's network.")
    image: str | None = Field(default=None, description="Image of tasks without one.")
    handoff: Path | None = Field(
        default=None, description="Host folder seen as /handoff, writable for the agent and read-only for a verifier."
    )
    hf_repositories: list[Path] = Field(
        default_factory=list, description="Repositories of a host's hub cache to see, read-only."
    )


class _Loader(yaml.SafeLoader):
    """Reads Compose's own tags (!reset, !override) as the plain value behind them."""


def _plain(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return loader.construct_sequence(node, deep=True) if isinstance(node, yaml.SequenceNode) else None


_Loader.add_multi_constructor("!", _plain)


def _documents(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [yaml.load(file.read_text(), _Loader) or {} for file in files]


def awaited(files: Iterable[Path]) -> set[str]:
    """The services for whose health another one waits."""
    services = [one or {} for document in _documents(files) for one in (document.get("services") or {}).values()]
    needed = [service["depends_on"] for service in services if isinstance(service.get("depends_on"), dict)]
    return {
        name
        for services in needed
        for name, how in services.items()
        if (how or {}).get("condition") == "service_healthy"
    }


def overlay(files: Iterable[Path], labelled: Mapping[str, str], host_network: bool) -> str:
    """A compose file to be read after `files`, with what every service of theirs needs."""
    services: dict[str, dict[str, Any]] = {"main": {}}
    made: dict[str, set[str]] = {"volumes": set(), "networks": set()}
    for document in _documents(files):
        for name, service in (document.get("services") or {}).items():
            services.setdefault(name, {}).update(service or {})
        for kind, names in made.items():
            names |= {name for name, own in (document.get(kind) or {}).items() if not (own or {}).get("external")}
    label = f"    labels: {json.dumps(dict(labelled))}"
    lines = ["services:"]
    for name, service in sorted(services.items()):
        lines += [f"  {json.dumps(name)}:", "    stop_grace_period: 0s", label]
        lines += _on_host_network(service, sorted(services)) if host_network else []
    if host_network:
        lines += ["networks: !reset {}"] if made.pop("networks") else []
    else:
        made["networks"].add("default")
    for kind, names in made.items():
        lines += [f"{kind}:", *(line for name in sorted(names) for line in (f"  {json.dumps(name)}:", label))] * bool(
            names
        )
    return "\n".join(lines) + "\n"


def _on_host_network(service: Mapping[str, Any], names: list[str]) -> list[str]:
    lines = ["    network_mode: host", f"    extra_hosts: {json.dumps([f'{name}:127.0.0.1' for name in names])}"]
    # podman-compose fails on a !reset of what no earlier file defined.
    lines += [
        f"    {key}: !reset {empty}" for key, empty in (("networks", "null"), ("ports", "[]")) if service.get(key)
    ]
    test = (service.get("healthcheck") or {}).get("test")
    if isinstance(test, list) and test[:1] == ["CMD"]:
        words = ["CMD-SHELL", shlex.join(map(str, test[1:]))]
        lines += ["    healthcheck:", f"      test: !override {json.dumps(words)}"]
    return lines


class DockerCompose(DockerEnvironment):
    """Harbor's docker environment and the overlay; images stay."""

    options_model = ComposeOptions
    options: ComposeOptions  # pyright: ignore[reportIncompatibleVariableOverride]
    # parse_options() makes the class that options_model names, which the base class cannot know.

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        own = {name: kwargs[name] for name in ComposeOptions.model_fields if name in kwargs}
        self.options = ComposeOptions.model_validate(own)  # pyright: ignore[reportIncompatibleVariableOverride]
        task = kwargs["task_env_config"]
        if not has_agent_environment_definition(kwargs["environment_dir"], docker_image=task.docker_image):
            task.docker_image = self.options.image
        self._overlay = tempfile.TemporaryDirectory(prefix="ptb-compose-")
        super().__init__(*args, **{name: value for name, value in kwargs.items() if name not in own})
        if self.options.handoff:
            is_agents = self.session_id.endswith("__env") and "__verifier__" not in self.session_id
            self._mount(self.options.handoff, HANDOFF, read_only=not is_agents)
        for path in self.options.hf_repositories:
            self._mount(path, f"{READ_ONLY}/{path.name}", read_only=True)

    def _mount(self, source: Path, target: str, *, read_only: bool) -> None:
        self._host_mounts.append(
            {"type": "bind", "source": str(source.resolve()), "target": target, "read_only": read_only}  # type: ignore[typeddict-item]
        )

    @property
    @override
    def _docker_compose_paths(self) -> list[Path]:
        paths = super()._docker_compose_paths
        own = labels(self.trial_paths.trial_dir) | {_SANDBOX: self._overlay.name}
        last = Path(self._overlay.name) / "overlay.yaml"
        last.write_text(overlay(paths, own, self.options.host_network and not self._network_disabled))
        return [*paths, last]

    @override
    async def _run_docker_compose_command(self, command: list[str], *args: Any, **kwargs: Any) -> ExecResult:
        if command[:1] == ["down"]:
            command = ["down", "--volumes", "--timeout", "0"]  # and never --rmi: another trial may need the image
        return await super()._run_docker_compose_command(command, *args, **kwargs)

    @override
    async def start(self, force_build: bool) -> None:
        await super().start(force_build)
        if self.options.hf_repositories:
            done = await self.exec(hf_layer(), cwd="/", user="root")
            if done.return_code != 0:
                raise RuntimeError(f"the sandbox's hub cache cannot be made: {done.stderr or done.stdout}")

    @override
    async def stop(self, delete: bool) -> None:
        try:
            await super().stop(delete=delete)
        finally:
            self._overlay.cleanup()


class PodmanCompose(DockerCompose, HarborPodman):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The same over Harbor's podman environment, and health checks where nobody else runs them."""

    @override
    async def _run_docker_compose_command(self, command: list[str], *args: Any, **kwargs: Any) -> ExecResult:
        start = super()._run_docker_compose_command(command, *args, **kwargs)
        if command[:1] != ["up"] or not (services := awaited(self._docker_compose_paths)):
            return await start
        up, well = asyncio.create_task(start), asyncio.create_task(self._until_well(services))
        try:
            await asyncio.wait([up, well], return_when=asyncio.FIRST_COMPLETED)
            if well.done():
                well.result()
            done = await up
            await well
            return done
        finally:
            up.cancel()
            well.cancel()

    async def _until_well(self, services: set[str]) -> None:
        """Run the health checks of services until each has passed. Raises RuntimeError when one has ended."""
        podman = Podman()
        listing = ("ps", "--all", "--filter", f"label={_SANDBOX}={self._overlay.name}", "--format", "json")
        while services:
            for container in json.loads(await podman(*listing)):
                name = container["Labels"]["com.docker.compose.service"]
                if name in services and container["State"] == "exited":
                    raise RuntimeError(f"the service {name} ended before it was healthy")
                if name in services and await podman.succeeds("healthcheck", "run", container["Id"]):
                    services.discard(name)
            await asyncio.sleep(HEALTH_SEC)
