"""A podman container as a Harbor environment: the podman command called directly, one container, no compose.

    environment.import_path = "ptb_runner.sandbox.podman:PodmanEnvironment"

What it isolates: files, processes, users, the network where a task asks for none; CPU and memory where podman may
limit them (not in a restricted machine: see podman_nested). What it does not: limit disk, or let a task reach some
hosts only. A restricted machine's public network is its own, with its loopback services.
"""

import asyncio
import os
import re
import secrets
import shlex
import tomllib
from pathlib import Path
from typing import Any, override

from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import should_use_prebuilt_docker_image
from harbor.environments.options import EnvironmentOptions
from harbor.models.task.config import TaskOS
from harbor.models.trial.config import ResourceMode
from pydantic import Field

from ptb_runner.hf_cache import READ_ONLY
from ptb_runner.sandbox import podman_images, podman_nested
from ptb_runner.sandbox.engine_labels import labels
from ptb_runner.sandbox.environment import HANDOFF, JobsEnvironment
from ptb_runner.sandbox.jobs import Command
from ptb_runner.sandbox.podman_cli import Podman
from ptb_runner.sandbox.podman_container import Container, Wanted, kill_all

__all__ = ["PodmanEnvironment", "PodmanOptions", "kill_all", "unsupported"]

DEFAULT_WORKDIR = "/app"


class PodmanOptions(EnvironmentOptions):
    """The `environment.kwargs` of this backend."""

    variables: dict[str, str] = Field(default_factory=dict, description="Environment variables of podman itself.")
    image: str | None = Field(default=None, description="Image, or folder with a Dockerfile, of tasks without one.")
    pull_tries: int = Field(default=4, description="Times an image is pulled until it succeeds.")
    host_network: bool = Field(default=False, description="Whether a public network is the host's own.")
    limits: bool = Field(default=True, description="Whether CPU and memory can be limited here.")
    gpu_devices: list[str] = Field(default=["nvidia.com/gpu=all"], description="CDI names of a sandbox's GPUs.")
    lifetime_sec: int | None = Field(default=None, description="Seconds after which podman ends a container.")
    run_args: list[str] = Field(default_factory=list, description="Further arguments of `podman run`.")
    scratch_dir: Path | None = Field(default=None, description="Host folder for what runner and container share.")
    hf_repositories: list[Path] = Field(
        default_factory=list, description="Repositories of a host's hub cache to see, read-only."
    )
    handoff: Path | None = Field(
        default=None,
        description="Host folder seen as /handoff, writable for the agent and read-only for a separate verifier.",
    )


def unsupported(task_dir: Path, image: str | None) -> list[str]:
    """Why a task cannot run in one podman container, one line for each reason; empty when it can."""
    try:
        task = tomllib.loads((task_dir / "task.toml").read_text())
    except (OSError, ValueError) as problem:
        return [f"{task_dir}/task.toml cannot be read: {problem}"]
    environment = task.get("environment", {})
    reasons = [f"[environment] {reason}" for reason in _config_reasons(environment)]
    if not (image or environment.get("docker_image") or (task_dir / "environment" / "Dockerfile").exists()):
        reasons.append("the task brings no image and no Dockerfile; give one with backend.image=NAME")
    for step in [task, *task.get("steps", [])]:
        verifier = step.get("verifier", {}).get("environment", {})
        reasons += [f"[verifier.environment] {reason}" for reason in _config_reasons(verifier)]
        for role in ("agent", "verifier"):
            if step.get(role, {}).get("network_mode") == "allowlist":
                reasons.append(f"[{role}] {ALLOWLIST}")
    return reasons


ALLOWLIST = "network_mode 'allowlist': podman cannot enforce it, the network is public or none"


def _config_reasons(config: dict[str, Any]) -> list[str]:
    found = {
        "tpu: no TPU is passed in": config.get("tpu"),
        "os 'windows': only Linux": str(config.get("os", "linux")).lower() == "windows",
        ALLOWLIST: config.get("network_mode") == "allowlist",
    }
    return [reason for reason, true in found.items() if true]


class PodmanEnvironment(JobsEnvironment):
    """One container of a Harbor trial. See the module's text for what it does and does not do."""

    options_model = PodmanOptions
    # The base class cannot know that parse_options() makes this very class.
    options: PodmanOptions  # pyright: ignore[reportIncompatibleVariableOverride]

    _container: Container | None = None

    @staticmethod
    @override
    def type() -> str:
        return "podman"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(mounted=True, disable_internet=True, gpus=True)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    @override
    def _validate_definition(self) -> None:
        config = self.task_env_config
        reasons = _config_reasons({"tpu": config.tpu, "os": "windows" if self.os == TaskOS.WINDOWS else "linux"})
        if (self.environment_dir / "docker-compose.yaml").exists():
            reasons.append("docker-compose.yaml needs compose")
        if not (config.docker_image or self._has_dockerfile or self.options.image):
            reasons.append("it brings no image and no Dockerfile, and backend.image gives none")
        if reasons:
            raise ValueError(f"podman cannot run this task: {'; '.join(reasons)}")

    @property
    def _has_dockerfile(self) -> bool:
        return (self.environment_dir / "Dockerfile").exists()

    @property
    def workdir(self) -> str | None:
        """Where commands run; None: where the image says."""
        given = self.task_env_config.workdir
        return given or (None if self.task_env_config.docker_image or self._has_dockerfile else DEFAULT_WORKDIR)

    @override
    async def start(self, force_build: bool) -> None:
        podman = Podman(self.options.variables)
        wanted = Wanted(self._name(), await self._image(podman, force_build), self._run_options(), self._startup_env())
        self._container = await Container.start(podman, wanted, self.options.scratch_dir)
        try:
            await self._furnish()
        except BaseException:
            await asyncio.shield(self.stop(delete=True))
            raise

    def _name(self) -> str:
        plain = re.sub(r"[^a-z0-9_.-]+", "-", self.session_id.lower())[:60]
        return f"ptb-{plain}-{secrets.token_hex(4)}"

    async def _image(self, podman: Podman, force_build: bool) -> str:
        named = self.task_env_config.docker_image
        if named and should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=named, force_build=force_build
        ):
            return await podman_images.pulled(podman, named, self.options.pull_tries)
        own = self.options.image
        folder = self.environment_dir if self._has_dockerfile or not own else Path(own)
        if not self._has_dockerfile and own and not folder.is_dir():
            return await podman_images.pulled(podman, own, self.options.pull_tries)
        return await podman_images.built(podman, folder, self.options.host_network, force_build)

    def _run_options(self) -> list[str]:
        labelled = labels(self.trial_paths.trial_dir).items()
        options = [word for key, value in labelled for word in ("--label", f"{key}={value}")]
        if self._network_disabled:
            options += ["--network", "none", *podman_nested.isolating()]
        elif self.options.host_network:
            options += ["--network", "host"]
        if self.options.lifetime_sec:
            options += ["--timeout", str(self.options.lifetime_sec)]
        if self._effective_gpus:
            options += [word for device in self.options.gpu_devices for word in ("--device", device)]
        return [*options, *self._limits(), *self._volumes(), *self.options.run_args]

    def _limits(self) -> list[str]:
        cpus = self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT)
        memory = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        if not self.options.limits:
            if cpus or memory:
                self.logger.warning("this machine cannot limit a container's CPU and memory: the limits do not hold")
            return []
        return [*(["--cpus", str(cpus)] if cpus else []), *(["--memory", f"{memory}m"] if memory else [])]

    def _volumes(self) -> list[str]:
        mounts = [(Path(mount["source"]), mount["target"], mount.get("read_only")) for mount in self._host_mounts]
        if self.options.handoff:
            mounts.append((self.options.handoff.resolve(), HANDOFF, not self._is_agents))
        mounts += [(path.resolve(), f"{READ_ONLY}/{path.name}", True) for path in self.options.hf_repositories]
        options = []
        for source, target, read_only in mounts:
            source.mkdir(parents=True, exist_ok=True) if not source.exists() else None
            options += ["--volume", f"{source}:{target}{':ro' if read_only else ''}"]
        return options

    async def _furnish(self) -> None:
        """The folders that Harbor and the task count on, for whoever works in them; the task's loose files."""
        folders = self._mount_targets(writable_only=True)
        shared = " ".join(shlex.quote(folder) for folder in folders)
        own = f"[ -d {(w := shlex.quote(self.workdir))} ] || mkdir -p -m 777 -- {w}; " if self.workdir else ""
        script = f"{own}mkdir -p -- {shared} && chmod 777 -- {shared}" if shared else own
        code, _, said = await self._running().run(self._of_root(script))
        if code != 0:
            raise RuntimeError(f"the container's folders cannot be made: {said.strip()}")
        if self._has_loose_files():
            await self._upload(
                self.environment_dir, self.workdir or await self._image_workdir(), lambda name: name != ".gitkeep"
            )
        await self._lay_hf_cache(self.options.hf_repositories)

    def _has_loose_files(self) -> bool:
        if not self._enable_environment_dir_upload or self._has_dockerfile or not self.environment_dir.is_dir():
            return False
        return any(entry.name != ".gitkeep" for entry in self.environment_dir.iterdir())

    async def _image_workdir(self) -> str:
        return (await self._running().run(Command("pwd", None, {})))[1].strip() or "/"

    @override
    async def stop(self, delete: bool) -> None:
        """Ends and removes the container also with delete=False: there is nothing to come back to."""
        container, self._container = self._container, None
        if not container:
            return
        if os.geteuid() != 0:
            await self._give_back(container)
        await container.stop()

    async def _give_back(self, container: Container) -> None:
        """Rootless, a file of another user of the container is none of ours on the host, and could not be deleted."""
        writable = [mount["target"] for mount in self._host_mounts if not mount.get("read_only")]
        writable += [HANDOFF] if self.options.handoff and self._is_agents else []
        if not writable:
            return
        shared = " ".join(shlex.quote(target) for target in writable)
        try:
            await container.run(self._of_root(f"chown -R 0:0 {shared}; chmod -R u+rwX {shared}"), timeout_sec=300)
        except (RuntimeError, TimeoutError) as problem:
            self.logger.warning(f"files of other users may be left in {shared}: {problem}")

    @override
    def _running(self) -> Container:
        if self._container is None:
            raise RuntimeError(f"the container of {self.session_id} is not running")
        return self._container

    @override
    def _command(self, shell: str, cwd: str | None, env: dict[str, str] | None, user: str | int | None) -> Command:
        return Command(shell, cwd or self.workdir, self._merge_env(env) or {}, None if user is None else str(user))

    @override
    def _of_root(self, shell: str) -> Command:
        return Command(shell, "/", {}, "root")
