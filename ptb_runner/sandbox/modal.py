"""A Modal sandbox as a Harbor environment: Harbor's own, with what a trial needs around it.

    environment.import_path = "ptb_runner.sandbox.modal:ModalTrialEnvironment"

What is ours: a name and tags that say whose it is, a lifetime, a volume for the hand-off, paced and patient creation
that never makes two, GPUs that are what was asked for, the end of a command that was given up, and the reason when a
sandbox ends by itself. Commands, file transfers, networks and compose tasks are Harbor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, override
from weakref import WeakSet

from harbor.environments.base import ExecResult
from harbor.environments.modal import ModalEnvironment, ModalOptions, SandboxLikelyOutOfMemoryError
from harbor.models.task.config import EnvironmentConfig
from modal import Image, Sandbox, Secret, Volume
from modal.exception import AlreadyExistsError, SandboxTerminatedError, SandboxTimeoutError
from pydantic import Field

from ptb_runner import hf_cache
from ptb_runner.paths import TEMPLATES
from ptb_runner.sandbox import gpus, modal_account, modal_owner, modal_prices
from ptb_runner.sandbox.environment import hf_layer
from ptb_runner.sandbox.modal_pace import pace

HANDOFF = "/handoff"
# Where the image of a task without one comes from: Python, bash, tar; NumPy for the programs of our own tasks.
PLAIN_IMAGE = "python:3.12-slim-bookworm"
PLAIN_PACKAGES = ("numpy>=2.1,<3",)
MARK = "PTB_JOB"
END_SEC, SYNC_SEC, SMI_SEC = 30, 1800, 60
LATE_CREATE_SEC = 300.0  # how long an interrupted trial waits for the sandbox that it asked for, to end it
GONE_TRIES, GONE_SEC = 4, 0.5
# What Harbor runs after each transfer of a folder.
_REMOVES_ARCHIVE = re.compile(r"rm -f /tmp/runtime_(up|down)load_[0-9a-f]{32}\.tar\.gz")

# Sandboxes of this process that are not known to be over, what is ending some, and loops in which none may begin.
_live: set[ModalTrialEnvironment] = set()
_ending: set[asyncio.Task[None]] = set()
_interrupted: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


class SandboxEndedError(RuntimeError):
    """The sandbox ended before its work was done."""


class ModalTrialOptions(ModalOptions):
    """The `environment.kwargs` of this backend, beside Harbor's own."""

    image: str | None = Field(default=None, description="Image, or folder with a Dockerfile, of tasks without one.")
    gpu: str | None = Field(default=None, description="GPU type, instead of the first that the task names.")
    cloud: str | None = Field(default=None, description="Cloud in which sandboxes run.")
    creations_per_sec: float = Field(default=4.0, description="Sandboxes that this process makes a second.")
    cell_id: str = Field(default="", description="Id of the cell, for the tags.")
    hf_cache: str | None = Field(default=None, description="Volume with repositories of the model hub, read-only.")
    handoff: str | None = Field(
        default=None, description="Volume seen as /handoff, writable for the agent, read-only for the verifier."
    )


class ModalTrialEnvironment(ModalEnvironment):
    """One sandbox of a Harbor trial. See the module's text for what is ours."""

    options_model = ModalTrialOptions
    # The base class cannot know that parse_options() makes this very class.
    options: ModalTrialOptions  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, environment_dir: Path, environment_name: str, session_id: str, *rest: Any, **kwargs: Any
    ) -> None:
        config: EnvironmentConfig | None = kwargs.get("task_env_config")
        self._is_plain = config is not None and not config.docker_image and not _brings_image(environment_dir)
        if config is not None and self._is_plain:
            # Harbor wants a task to name its image, and then brings environment/ into the sandbox.
            kwargs["task_env_config"] = config.model_copy(update={"docker_image": PLAIN_IMAGE})
        self._creating: asyncio.Task[Sandbox] | None = None
        self._removals: list[str] = []
        super().__init__(environment_dir, environment_name, session_id, *rest, **kwargs)
        # Unique in the app, in which names are unique: two runs have trials of the same name.
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", session_id)
        self._name = f"ptb-{secrets.token_hex(4)}-{plain}"[: modal_owner.NAME_MAX].rstrip("-.")

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Nothing: the backend has checked it, and Harbor's check knows only one file."""

    @property
    def _is_agents(self) -> bool:
        return self.session_id.endswith("__env") and "__verifier__" not in self.session_id

    # --- What is asked for ----------------------------------------------------------------------------

    @override
    def _gpu_config(self) -> str | None:
        if self._effective_gpus <= 0:
            return None
        return f"{self._gpu_type}:{self._effective_gpus}"

    @property
    def _gpu_type(self) -> str:
        named = self.options.gpu or next(iter(self.task_env_config.gpu_types or ()), "any")
        # A plain H100 may be answered with an H200, whose scores are others.
        return "H100!" if named.upper() == "H100" else named

    @override
    def _volumes_config(self) -> dict[str, Volume]:
        mounted = super()._volumes_config()
        if self.options.hf_cache:
            mounted[hf_cache.READ_ONLY] = Volume.from_name(self.options.hf_cache).read_only()
        if self.options.handoff:
            volume = Volume.from_name(self.options.handoff)
            mounted[HANDOFF] = volume if self._is_agents else volume.read_only()
        return mounted

    @override
    def _sandbox_labels(self) -> dict[str, str]:
        trial = self.trial_paths.trial_dir
        own = {
            modal_account.OWNER: modal_owner.owner(),
            modal_account.HOST: socket.gethostname(),
            modal_account.RUN: str(trial.parent.parent).strip("/"),
            modal_account.CELL: self.options.cell_id,
            modal_account.TRIAL: trial.name,
            modal_account.STARTED: str(int(time.time())),
            modal_account.USD: f"{self._usd_per_hour():.2f}",
        }
        labels = super()._sandbox_labels() | own
        return {key: tag for key, value in labels.items() if (tag := _tag(value))}

    def _usd_per_hour(self) -> float:
        cores, memory = self._effective_cpus or 0.125, self._effective_memory_mb or 128
        return modal_prices.usd_per_hour(self._gpu_type, self._effective_gpus, cores, memory)

    def _chosen_image(self, force_build: bool) -> Image:
        docker_image, own = self.task_env_config.docker_image, self.options.image
        secret = Secret.from_name(self._registry_secret) if self._registry_secret else None
        if self._is_plain and own and Path(own).is_dir():
            return Image.from_dockerfile(Path(own) / "Dockerfile", context_dir=own)
        if self._is_plain and not own:
            return Image.from_registry(PLAIN_IMAGE).pip_install(*PLAIN_PACKAGES)
        if not self._is_plain and (not docker_image or (force_build and self._environment_definition_path.exists())):
            return Image.from_dockerfile(self._environment_definition_path, context_dir=self.environment_dir)
        name = (own if self._is_plain else docker_image) or PLAIN_IMAGE
        return Image.from_aws_ecr(name, secret=secret) if ".dkr.ecr." in name else Image.from_registry(name, secret)

    # --- Beginning ------------------------------------------------------------------------------------

    @override
    async def start(self, force_build: bool) -> None:
        if self._compose_mode:
            await super().start(force_build)
            return
        self._image = self._chosen_image(force_build)
        self._app = await modal_account.app(self._app_name)
        self._sandbox = await self._create_sandbox(entrypoint=self.options.keepalive)
        await self._furnish()
        if self._effective_gpus > 0:
            await self._note_gpus()

    @override
    async def _create_sandbox(  # pyright: ignore[reportIncompatibleVariableOverride]
        self,
        *,
        entrypoint: list[str] | None = None,
        block_network: bool | None = None,
        experimental_options: dict[str, Any] | None = None,
    ) -> Sandbox:
        """Ask for a sandbox. Whoever stops waiting for it does not take that back: `stop` then waits, and ends it."""
        if asyncio.get_running_loop() in _interrupted:
            raise asyncio.CancelledError  # Harbor goes on to the verifier where an interrupt met the end of the agent's
        more = {"experimental_options": experimental_options} if experimental_options else {}
        _live.add(self)
        self._creating = asyncio.create_task(self._created(entrypoint or [], self._wishes(block_network) | more))
        sandbox = await asyncio.shield(self._creating)
        self._sandbox_termination_requested = False
        return sandbox

    def _wishes(self, block_network: bool | None) -> dict[str, Any]:
        """The arguments of Sandbox.create, but for those that are None."""
        wishes: dict[str, Any] = {
            "name": self._name,
            "timeout": self._sandbox_timeout,
            "idle_timeout": self._sandbox_idle_timeout,
            "cpu": self._cpu_config(),
            "memory": self._memory_config(),
            "gpu": self._gpu_config(),
            "region": self.options.region,
            "cloud": self.options.cloud,
            "runtime": "vm" if self._vm_runtime_enabled else None,
            "secrets": self._secrets_config(),
            "volumes": self._volumes_config(),
            "tags": self._sandbox_labels(),
            "block_network": self._network_disabled if block_network is None else block_network,
        }
        if self._dynamic_network:
            wishes["block_network"] = False
            wishes |= self._dynamic_network_kwargs(self.network_policy, compose_mode=self._compose_mode)
        elif self._network_is_allowlist:
            wishes |= self._allowlist_network_kwargs(self.network_policy, compose_mode=self._compose_mode)
        return {key: value for key, value in wishes.items() if value is not None}

    async def _created(self, entrypoint: list[str], wishes: dict[str, Any]) -> Sandbox:
        async def create() -> Sandbox:
            await pace(self.options.creations_per_sec).turn()
            try:
                return await Sandbox.create.aio(*entrypoint, app=self._app, image=self._image, **wishes)
            except AlreadyExistsError:
                # An earlier try was answered with an error, and had made it all the same.
                return await Sandbox._experimental_from_name.aio(self._app_name, self._name)

        try:
            return await modal_account.patiently(create)
        except Exception:
            await self._take_back()
            raise

    async def _take_back(self) -> None:
        """End what a failed creation may have left."""
        with contextlib.suppress(Exception):
            await modal_account.end(await Sandbox._experimental_from_name.aio(self._app_name, self._name))

    async def _furnish(self) -> None:
        """The folders that Harbor and the task count on, for whoever works in them; the task's own files."""
        workdir = self.task_env_config.workdir
        own = f"[ -d {(w := shlex.quote(workdir))} ] || mkdir -p -m 777 -- {w}; " if workdir else ""
        shared = " ".join(shlex.quote(folder) for folder in self._mount_targets(writable_only=True))
        result = await self._sdk_exec(f"{own}mkdir -p -- /tmp {shared} && chmod 777 -- {shared or '/tmp'}")
        if result.return_code != 0:
            raise RuntimeError(f"the sandbox's folders cannot be made: {result.stderr}")
        if self.options.hf_cache:
            result = await self._sdk_exec(hf_layer(f"{hf_cache.READ_ONLY}/hub"), shell="sh")
            if result.return_code != 0:
                raise RuntimeError(f"the sandbox's hub cache cannot be made: {result.stderr}")
        await self._upload_environment_dir_after_start()
        for mount in self._host_mounts:
            await self._sdk_upload_dir(mount["source"], mount["target"])

    @override
    async def _upload_environment_dir_after_start(self) -> None:
        if self.environment_dir.is_dir() and any(one.name != ".gitkeep" for one in self.environment_dir.iterdir()):
            await super()._upload_environment_dir_after_start()

    async def _note_gpus(self) -> None:
        result = await self._sdk_exec(gpus.QUERY, timeout_sec=SMI_SEC)
        shown = [line.strip() for line in (result.stdout or "").splitlines() if line.strip()]
        if result.return_code != 0:
            self.logger.warning(f"nvidia-smi failed: {result.stderr}")
            shown = []
        gpus.note(self.trial_paths.trial_dir, "agent" if self._is_agents else "verifier", shown)

    # --- Commands -------------------------------------------------------------------------------------

    @override
    async def _sdk_exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        shell: str = "bash",
        login: bool = False,
    ) -> ExecResult:
        """Run a command. Harbor gives an agent up without ending it, and so does Modal: we end it.

        The removal of a transfer's archive goes with the next command: one of its own costs the runner as much as any.
        """
        if _REMOVES_ARCHIVE.fullmatch(command):
            self._removals.append(command)
            return ExecResult(stdout="", stderr="", return_code=0)
        mark, removals = secrets.token_hex(8), [f"{one}; " for one in self._removals]
        self._removals.clear()
        marked = "".join(removals) + f"exec env {MARK}={mark} {shell} {'-lc' if login else '-c'} {shlex.quote(command)}"
        try:
            result = await super()._sdk_exec(marked, cwd, env, timeout_sec, shell)
        except asyncio.CancelledError:
            await self._end_command(mark)
            raise
        if result.return_code == -1 and timeout_sec:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        if result.return_code in (-1, 137):
            await self._raise_if_gone()
        return result

    async def _end_command(self, mark: str) -> None:
        """End the processes of a command, however far they have gone away."""
        if self._sandbox is None or self._sandbox_termination_requested:
            return
        script = (TEMPLATES / "sandbox" / "end_job.sh").read_text()

        async def end() -> None:
            assert self._sandbox
            process = await self._sandbox.exec.aio("sh", "-c", script, "end_job", f"{MARK}={mark}", timeout=END_SEC)
            await process.wait.aio()

        try:
            async with asyncio.timeout(END_SEC):
                await asyncio.shield(asyncio.create_task(end()))
        except Exception as problem:
            self.logger.warning(f"a command may still run in {self._name}: {problem}")

    async def _raise_if_gone(self) -> None:
        """A command that was killed may have been so with its sandbox, which is known a little later."""
        for _ in range(GONE_TRIES):
            await self._raise_if_unexpected_exit_137(cause=None)
            await asyncio.sleep(GONE_SEC)

    @override
    async def _raise_if_unexpected_exit_137(self, *, cause: Exception | None) -> None:
        """Say why the sandbox ended, if it did by itself; Harbor asks when a command failed."""
        if self._sandbox is None or self._sandbox_termination_requested:
            return
        try:
            if await self._sandbox.poll.aio() is None:
                return
            await self._sandbox.wait.aio()
            code = self._sandbox.returncode
        except SandboxTimeoutError:
            raise SandboxEndedError(f"the sandbox's lifetime of {self._sandbox_timeout} s was over") from cause
        except SandboxTerminatedError:
            words = "the sandbox was terminated from outside: preempted by Modal, or stopped by somebody"
            raise SandboxEndedError(words) from cause
        except Exception as problem:
            self.logger.debug(f"the state of {self._name} is not known: {problem}")
            return
        if code == 137:
            raise SandboxLikelyOutOfMemoryError(requested_memory_mb=self._requested_memory_mb()) from cause
        raise SandboxEndedError(f"the sandbox ended by itself with exit code {code}") from cause

    # --- The end --------------------------------------------------------------------------------------

    @override
    async def stop(self, delete: bool) -> None:
        """Ends the sandbox and waits until it is over, also with delete=False; raises when that is not certain."""
        await asyncio.shield(_in_background(self._stop()))

    async def _stop(self) -> None:
        if self._creating and not self._sandbox:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LATE_CREATE_SEC):
                    self._sandbox = await asyncio.shield(self._creating)
        if not self._sandbox:
            _live.discard(self)
            return
        if self._compose_mode:
            await super().stop(delete=True)
        else:
            await self._commit_handoff()
            await self._end()
        _live.discard(self)

    async def _commit_handoff(self) -> None:
        """Have the volume written out by the sandbox itself; its end would do so, but could not say that it failed."""
        if not (self.options.handoff and self._is_agents) or self._sandbox_termination_requested:
            return
        try:
            result = await self._sdk_exec(f"sync {HANDOFF}", timeout_sec=SYNC_SEC)
            if result.return_code != 0:
                self.logger.warning(f"sync of {HANDOFF}: {result.stderr}")
        except Exception as problem:
            self.logger.warning(f"sync of {HANDOFF}: {problem}")

    async def _end(self) -> None:
        sandbox, self._sandbox_termination_requested = self._sandbox, True
        if sandbox:
            await modal_account.end(sandbox)
        self._sandbox = self._creating = None

    async def _kill(self) -> None:
        self._sandbox_termination_requested = True
        with contextlib.suppress(Exception):
            sandbox = self._sandbox or (await asyncio.shield(self._creating) if self._creating else None)
            if sandbox:
                await sandbox.terminate.aio()


def kill_all() -> None:
    """Terminate every sandbox of this process, and let none begin; called in the loop in which they live."""
    _interrupted.add(asyncio.get_running_loop())
    for environment in list(_live):
        _in_background(environment._kill())


def _in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Something that goes on when whoever waits for it is cancelled; `all_ended` waits for it, too."""
    task = asyncio.get_running_loop().create_task(work)
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    return task


async def all_ended() -> None:
    loop = asyncio.get_running_loop()
    while ending := [task for task in _ending if task.get_loop() is loop and not task.done()]:
        await asyncio.wait(ending)


def _brings_image(environment_dir: Path) -> bool:
    return any((environment_dir / name).exists() for name in ("Dockerfile", "docker-compose.yaml"))


def _tag(value: str) -> str:
    """What Modal takes as a tag's value; of a path the end says most."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", value)[-63:].lstrip("-.")
