"""The bubblewrap sandbox as a Harbor environment: no container engine, no image, up in a tenth of a second.

    environment.import_path = "ptb_runner.sandbox.bubblewrap:BubblewrapEnvironment"

What it isolates is described in ptb_runner.sandbox.bwrap. What it does not do: limit CPU, memory or disk (a task's
`cpus` and `memory_mb` are not enforced), run images, have other users than root, install system packages (/usr is the
host's, read-only). A public network is the host's own, with its loopback services and abstract sockets.
"""

import asyncio
import os
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, override

from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.options import EnvironmentOptions
from harbor.models.task.config import TaskOS
from pydantic import Field

from ptb_runner.hf_cache import READ_ONLY
from ptb_runner.sandbox import bwrap, scratch
from ptb_runner.sandbox.box import Box, kill_all
from ptb_runner.sandbox.environment import HANDOFF, JobsEnvironment
from ptb_runner.sandbox.jobs import Command
from ptb_runner.sandbox.scratch import reap

__all__ = ["BubblewrapEnvironment", "BubblewrapOptions", "describe", "kill_all", "problems", "reap", "unsupported"]

describe = bwrap.describe

DEFAULT_WORKDIR = "/app"
OTHER_BACKENDS = "use podman or docker"
ROOT = (None, "root", "0", 0)
# NumPy's BLAS picks its code by CPU; where that guess is wrong, these are how the machine's owner corrected it.
HOST_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class BubblewrapOptions(EnvironmentOptions):
    """The `environment.kwargs` of this backend."""

    scratch_dir: Path | None = Field(
        default=None, description="Host folder for the sandboxes' files. Default: $TMPDIR, /tmp."
    )
    handoff: Path | None = Field(
        default=None,
        description="Host folder seen as /handoff, writable for the agent and read-only for a separate verifier.",
    )
    read_only_paths: list[Path] = Field(
        default_factory=list,
        description="More host folders to see, read-only, at their own paths; programs in their bin/ are found.",
    )
    hf_repositories: list[Path] = Field(
        default_factory=list, description="Repositories of a host's hub cache to see, read-only."
    )


def problems(options: BubblewrapOptions | None = None) -> list[str]:
    """Why no sandbox can be made here, and what to do about it; empty when all is well."""
    options = options or BubblewrapOptions()
    named = [*options.read_only_paths, *([options.handoff] if options.handoff else [])]
    absent = [f"{path} (backend option) is no folder on this machine" for path in named if not path.is_dir()]
    return [*bwrap.problems(), *scratch.problems(options.scratch_dir), *absent]


def unsupported(task_dir: Path) -> list[str]:
    """Why a task cannot run in this sandbox, one line for each reason; empty when it can."""
    try:
        task = tomllib.loads((task_dir / "task.toml").read_text())
    except (OSError, ValueError) as problem:
        return [f"{task_dir}/task.toml cannot be read: {problem}"]
    reasons: list[str] = []
    reasons += [f"[environment] {reason}" for reason in _config_reasons(task.get("environment", {}))]
    for folder in [task_dir / "environment", task_dir / "tests", *sorted(task_dir.glob("steps/*/tests"))]:
        reasons += _definition_reasons(folder)
    for step in [task, *task.get("steps", [])]:
        verifier = step.get("verifier", {}).get("environment", {})
        reasons += [f"[verifier.environment] {reason}" for reason in _config_reasons(verifier)]
        for role in ("agent", "verifier"):
            config = step.get(role, {})
            if config.get("user") not in ROOT:
                reasons.append(f"[{role}] user {config['user']!r}: only root exists")
            if config.get("network_mode") == "allowlist":
                reasons.append(f"[{role}] network_mode 'allowlist': the network is public or none")
    return reasons


def _config_reasons(config: dict[str, Any], read_only: Iterable[Path] = ()) -> list[str]:
    """Reasons in one [environment] section. `read_only`: host folders that the workdir must not hide."""
    found = {
        f"docker_image {config.get('docker_image')!r} needs a container engine": config.get("docker_image"),
        f"gpus = {config.get('gpus')}: no GPU is passed in": config.get("gpus"),
        "tpu: no TPU is passed in": config.get("tpu"),
        "os 'windows': only Linux": str(config.get("os", "linux")).lower() == "windows",
        "network_mode 'allowlist': the network is public or none": config.get("network_mode") == "allowlist",
    }
    workdir = bwrap.workdir_problem(config.get("workdir") or DEFAULT_WORKDIR, read_only)
    return [reason for reason, true in found.items() if true] + ([workdir] if workdir else [])


def _definition_reasons(folder: Path) -> list[str]:
    names = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml")
    return [f"{folder.name}/{name} needs a container engine" for name in names if (folder / name).exists()]


class BubblewrapEnvironment(JobsEnvironment):
    """One sandbox of a Harbor trial. See the module's text for what it does and does not do."""

    options_model = BubblewrapOptions
    # The base class cannot know that parse_options() makes this very class.
    options: BubblewrapOptions  # pyright: ignore[reportIncompatibleVariableOverride]

    _box: Box | None = None
    _scratch: scratch.Scratch | None = None

    @staticmethod
    @override
    def type() -> str:
        return "bubblewrap"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(mounted=True, disable_internet=True)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        # No limit is enforced, so a fraction of a CPU is as good as a whole one.
        return EnvironmentResourceCapabilities(fractional_cpus=True)

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        super().preflight(kwargs)
        if found := problems(BubblewrapOptions.model_validate(kwargs or {})):
            raise SystemExit("\n".join(found))

    @override
    def _validate_definition(self) -> None:
        config = self.task_env_config.model_dump(include={"docker_image", "gpus", "tpu", "workdir"})
        config["os"] = "windows" if self.os == TaskOS.WINDOWS else "linux"
        reasons = _config_reasons(config, self.options.read_only_paths) + _definition_reasons(self.environment_dir)
        reasons += [f"a mount of type {mount['type']!r}" for mount in self._host_mounts if mount["type"] != "bind"]
        if reasons:
            raise ValueError(f"bubblewrap cannot run this task ({'; '.join(reasons)}): {OTHER_BACKENDS}.")

    @property
    def workdir(self) -> str:
        """Where commands run: private to the sandbox, and holding the loose files of the task's environment/."""
        return self.task_env_config.workdir or DEFAULT_WORKDIR

    @override
    async def start(self, force_build: bool) -> None:
        try:
            await self._make_scratch()
            assert self._scratch
            self._box = await Box.start(self._layout(self._scratch.path))
            if self._box.pid:
                self._scratch.record(self._box.pid)
            await self._upload_loose_files()
            await self._lay_hf_cache(self.options.hf_repositories)
        except BaseException:
            await asyncio.shield(self.stop(delete=True))
            raise

    async def _make_scratch(self) -> None:
        making = asyncio.ensure_future(asyncio.to_thread(scratch.create, self.options.scratch_dir))
        try:
            self._scratch = await asyncio.shield(making)
        except asyncio.CancelledError:
            self._scratch = await making  # a thread goes on when it is cancelled: what it makes must not be lost
            raise

    def _layout(self, folder: Path) -> bwrap.Layout:
        mounts = [bwrap.Mount(path, str(path)) for path in self.options.read_only_paths]
        mounts += [bwrap.Mount(path, f"{READ_ONLY}/{path.name}") for path in self.options.hf_repositories]
        for mount in self._host_mounts:
            source = Path(mount["source"])
            if not source.exists():
                source.mkdir(parents=True)  # as container engines do
            mounts.append(bwrap.Mount(source, mount["target"], writable=not mount.get("read_only", False)))
        if self.options.handoff:
            mounts.append(bwrap.Mount(self.options.handoff.resolve(), HANDOFF, writable=self._is_agents))
        mounted = {mount["target"] for mount in self._host_mounts}
        return bwrap.Layout(
            folder,
            workdir=self.workdir.rstrip("/"),
            public_network=self._network_is_public,
            mounts=mounts,
            folders=[target for target in self._mount_targets(writable_only=True) if target not in mounted],
        )

    async def _upload_loose_files(self) -> None:
        if not self._enable_environment_dir_upload or not self.environment_dir.is_dir():
            return
        if any(entry.name != ".gitkeep" for entry in self.environment_dir.iterdir()):
            await self._upload(self.environment_dir, self.workdir, lambda name: name != ".gitkeep")

    @override
    async def stop(self, delete: bool) -> None:
        """Ends all processes, and removes the files also with delete=False: there is nothing to come back to."""
        box, self._box = self._box, None
        folder, self._scratch = self._scratch, None
        try:
            if box:
                await box.stop()
        finally:
            if folder:
                await asyncio.to_thread(folder.remove)

    @override
    def _running(self) -> Box:
        if self._box is None:
            raise RuntimeError(f"the sandbox of {self.session_id} is not running")
        return self._box

    @override
    def _of_root(self, shell: str) -> Command:
        return self._command(shell, "/", None, None)

    def _own_programs(self) -> list[str]:
        """Where the programs are that further host folders bring, such as an agent's CLI."""
        return [f"{path}/bin" for path in self.options.read_only_paths if (path / "bin").is_dir()]

    @override
    def _command(self, shell: str, cwd: str | None, env: dict[str, str] | None, user: str | int | None) -> Command:
        if user not in ROOT:
            raise ValueError(f"user {user!r}: a bubblewrap sandbox has only root; {OTHER_BACKENDS}")
        variables = {
            "PATH": ":".join([f"{sys.prefix}/bin", *self._own_programs(), *bwrap.SYSTEM_PATH]),
            **{"HOME": "/root", "USER": "root", "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp"},
            "PYTHONDONTWRITEBYTECODE": "1",
            **{name: os.environ[name] for name in HOST_VARIABLES if name in os.environ},
            **(self._merge_env(env) or {}),
        }
        return Command(shell, cwd or self.workdir, variables)
