"""The bubblewrap sandbox as a Harbor environment: no container engine, no image, up in a tenth of a second.

    environment.import_path = "ptb_runner.sandbox.bubblewrap:BubblewrapEnvironment"

What it isolates is described in ptb_runner.sandbox.bwrap. What it does not do: limit CPU, memory or disk (a task's
`cpus` and `memory_mb` are not enforced), run images, have other users than root, install system packages (/usr is the
host's, read-only). A public network is the host's own, with its loopback services and abstract sockets.
"""

import asyncio
import contextlib
import os
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult, OutputStream
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.options import EnvironmentOptions
from harbor.models.task.config import TaskOS
from harbor.utils.path_filter import filter_paths_by_patterns
from pydantic import Field

from ptb_runner.sandbox import bwrap, scratch, transfer
from ptb_runner.sandbox.box import Box, Command, kill_all
from ptb_runner.sandbox.output import Listener
from ptb_runner.sandbox.scratch import reap

__all__ = ["BubblewrapEnvironment", "BubblewrapOptions", "describe", "kill_all", "problems", "reap", "unsupported"]

describe = bwrap.describe

DEFAULT_WORKDIR = "/app"
HANDOFF = "/handoff"
TRANSFER_SEC = 3600
OTHER_BACKENDS = "use podman, docker, modal or beaker"
ROOT = (None, "root", "0", 0)
# NumPy's BLAS picks its code by CPU; where that guess is wrong, these are how the machine's owner corrected it.
HOST_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# GNU tar's exit code 1: some files changed, shrank or vanished meanwhile. The archive is whole all the same.
TAR_OK = (0, 1)


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
        default_factory=list, description="More host folders to see, read-only, at their own paths."
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


class BubblewrapEnvironment(BaseEnvironment):
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
            self._scratch = await asyncio.to_thread(scratch.create, self.options.scratch_dir)
            self._box = await Box.start(self._layout(self._scratch.path))
            if self._box.pid:
                self._scratch.record(self._box.pid)
            await self._upload_loose_files()
        except BaseException:
            await asyncio.shield(self.stop(delete=True))
            raise

    def _layout(self, folder: Path) -> bwrap.Layout:
        mounts = [bwrap.Mount(path, str(path)) for path in self.options.read_only_paths]
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

    @property
    def _is_agents(self) -> bool:
        # Harbor names the agent's environment <trial>__env, and shortens a verifier's long name from its end.
        return self.session_id.endswith("__env") and "__verifier__" not in self.session_id

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
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        if self._resolve_user(user) not in ROOT:
            raise ValueError(f"user {self._resolve_user(user)!r}: a bubblewrap sandbox has only root; {OTHER_BACKENDS}")
        wanted = self._command(command, cwd, env)
        listeners = (self._listener("stdout"), self._listener("stderr"))
        try:
            code, out, err = await self._running().run(wanted, timeout_sec, listeners)
        except TimeoutError:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        return ExecResult(stdout=out, stderr=err, return_code=code)

    def _running(self) -> Box:
        if self._box is None:
            raise RuntimeError(f"the sandbox of {self.session_id} is not running")
        return self._box

    def _listener(self, stream: OutputStream) -> Listener | None:
        callback = self._output_callback()
        return (lambda text: callback(text, stream)) if callback else None

    def _command(self, shell: str, cwd: str | None = None, env: dict[str, str] | None = None) -> Command:
        variables = {
            "PATH": f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **{"HOME": "/root", "USER": "root", "LANG": "C.UTF-8", "TERM": "dumb", "TMPDIR": "/tmp"},
            "PYTHONDONTWRITEBYTECODE": "1",
            **{name: os.environ[name] for name in HOST_VARIABLES if name in os.environ},
            **(self._merge_env(env) or {}),
        }
        return Command(shell, cwd or self.workdir, variables)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        mode = (await asyncio.to_thread(source.stat)).st_mode & 0o777
        inner = shlex.quote(f"{target_path.rstrip('/')}/{source.name}")
        script = (
            f't={shlex.quote(target_path)}; [ ! -d "$t" ] || t={inner}; mkdir -p -- "$(dirname -- "$t")" && '
            f'rm -f -- "$t" && cat > "$t" && chmod {mode:o} -- "$t"'
        )
        await self._feed(script, lambda fd: transfer.copy(source, fd))

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._upload(Path(source_dir), target_dir)

    async def _upload(self, source: Path, target: str, wanted: Callable[[str], bool] = lambda name: True) -> None:
        if not await asyncio.to_thread(source.is_dir):
            raise FileNotFoundError(f"{source} is no folder")
        into = shlex.quote(target)
        script = f"mkdir -p -- {into} && exec tar -x --no-same-owner -C {into}"
        await self._feed(script, lambda fd: transfer.pack(source, fd, wanted))

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Raises RuntimeError when it is no regular file; a link is none."""
        path = PurePosixPath(source_path)
        script = f"exec tar -c -C {shlex.quote(str(path.parent))} -- {shlex.quote(path.name)}"
        await self._drain(script, lambda stream: transfer.unpack_file(stream, Path(target_path)), source_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._download(source_dir, target_dir, "")

    @override
    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        flags = " ".join(f"--exclude={shlex.quote(pattern)}" for pattern in exclude)
        await self._download(source_dir, target_dir, flags)

    @override
    async def download_dir_filtered(
        self,
        *,
        source_dir: str,
        target_dir: Path | str,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        protect: Sequence[str] | None = None,
    ) -> None:
        listing = await self.exec(f"cd -- {shlex.quote(source_dir)} && find . -type f -printf '%P\\n'", cwd="/")
        if listing.return_code != 0:
            raise RuntimeError(f"cannot list {source_dir}: {listing.stderr}")
        names = (listing.stdout or "").splitlines()
        chosen = set(filter_paths_by_patterns(names, include=include, exclude=exclude)) | set(protect or ())
        kept = chosen.intersection(names)
        await self._download(source_dir, target_dir, "--verbatim-files-from --no-recursion -T -", kept)

    async def _download(self, source: str, target: Path | str, flags: str, names: Iterable[str] | None = None) -> None:
        what = "." if names is None else ""
        # --hard-dereference: each name of a file gets the content, as links are not unpacked.
        script = f"exec tar -c --ignore-failed-read --hard-dereference -C {shlex.quote(source)} {flags} {what}"
        given = "".join(f"{name}\n" for name in names or ())
        refused = await self._drain(script, lambda stream: transfer.unpack(stream, Path(target)), source, given)
        if refused:
            self.logger.warning(f"left out of the copy of {source}: {'; '.join(refused[:20])}")

    async def _feed(self, script: str, write: Callable[[int], object]) -> None:
        with _in_time("upload"):
            code, said = await self._running().feed(self._command(script, "/"), write, TRANSFER_SEC)
        if code != 0:
            raise RuntimeError(f"upload failed with exit code {code}: {said.strip()}")

    async def _drain[T](self, script: str, read: Callable[[transfer.PipeReader], T], source: str, given: str = "") -> T:
        command = self._command(script, "/")
        with _in_time(f"download of {source}"):
            code, said, result = await self._running().drain(command, read, TRANSFER_SEC, given)
        if code not in TAR_OK or isinstance(result, Exception):
            reason = said.strip() if code not in TAR_OK and said.strip() else f"exit code {code}, {result!r}"
            raise RuntimeError(f"download of {source} failed: {reason}")
        return result


@contextlib.contextmanager
def _in_time(what: str) -> Iterator[None]:
    """Harbor would take a bare TimeoutError for one of its own."""
    try:
        yield
    except TimeoutError:
        raise RuntimeError(f"{what} took more than {TRANSFER_SEC} seconds") from None
