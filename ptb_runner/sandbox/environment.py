"""What our Harbor environments share: files go in and out as tar streams, through the sandbox's own commands."""

import abc
import asyncio
import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import override

from harbor.environments.base import BaseEnvironment, ExecResult, OutputStream
from harbor.utils.path_filter import filter_paths_by_patterns

from ptb_runner import hf_cache
from ptb_runner.paths import TEMPLATES
from ptb_runner.sandbox import transfer
from ptb_runner.sandbox.jobs import Command, Jobs
from ptb_runner.sandbox.output import Listener

HANDOFF = "/handoff"
TRANSFER_SEC = 3600
HF_LAYER = TEMPLATES / "sandbox" / "hf_layer.sh"
# GNU tar's exit code 1: some files changed, shrank or vanished meanwhile. The archive is whole all the same.
TAR_OK = (0, 1)


class JobsEnvironment(BaseEnvironment):
    """A Harbor environment in one sandbox that takes commands; a child class starts and stops it."""

    @abc.abstractmethod
    def _running(self) -> Jobs:
        """The sandbox. Raises RuntimeError when it is not running."""

    @abc.abstractmethod
    def _command(self, shell: str, cwd: str | None, env: dict[str, str] | None, user: str | int | None) -> Command:
        """A command as Harbor asks for it. Raises ValueError for a user that the sandbox cannot have."""

    @abc.abstractmethod
    def _of_root(self, shell: str) -> Command:
        """A command that may read and write every file of the sandbox, in its root folder."""

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        wanted = self._command(command, cwd, env, self._resolve_user(user))
        listeners = (self._listener("stdout"), self._listener("stderr"))
        try:
            code, out, err = await self._running().run(wanted, timeout_sec, listeners)
        except TimeoutError:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from None
        return ExecResult(stdout=out, stderr=err, return_code=code)

    @property
    def _is_agents(self) -> bool:
        # Harbor names the agent's environment <trial>__env, and shortens a verifier's long name from its end.
        return self.session_id.endswith("__env") and "__verifier__" not in self.session_id

    def _listener(self, stream: OutputStream) -> Listener | None:
        callback = self._output_callback()
        return (lambda text: callback(text, stream)) if callback else None

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

    async def _lay_hf_cache(self, repositories: Sequence[Path]) -> None:
        """Give the sandbox a hub cache of its own over the repositories that it sees."""
        if not repositories:
            return
        code, _, said = await self._running().run(self._of_root(hf_layer()), TRANSFER_SEC)
        if code != 0:
            raise RuntimeError(f"the sandbox's hub cache cannot be made: {said.strip()}")

    async def _feed(self, script: str, write: Callable[[int], object]) -> None:
        with _in_time("upload"):
            code, said = await self._running().feed(self._of_root(script), write, TRANSFER_SEC)
        if code != 0:
            raise RuntimeError(f"upload failed with exit code {code}: {said.strip()}")

    async def _drain[T](self, script: str, read: Callable[[transfer.PipeReader], T], source: str, given: str = "") -> T:
        command = self._of_root(script)
        with _in_time(f"download of {source}"):
            code, said, result = await self._running().drain(command, read, TRANSFER_SEC, given)
        if code not in TAR_OK or isinstance(result, Exception):
            reason = said.strip() if code not in TAR_OK and said.strip() else f"exit code {code}, {result!r}"
            raise RuntimeError(f"download of {source} failed: {reason}")
        return result


def hf_layer(read_only: str = hf_cache.READ_ONLY) -> str:
    """The shell command that makes it: for shells that take a command, not a file."""
    return f"set -- {read_only} {hf_cache.HOME}\n{HF_LAYER.read_text()}"


@contextlib.contextmanager
def _in_time(what: str) -> Iterator[None]:
    """Harbor would take a bare TimeoutError for one of its own."""
    try:
        yield
    except TimeoutError:
        raise RuntimeError(f"{what} took more than {TRANSFER_SEC} seconds") from None
