"""Calling podman: its processes, their errors, and their end when the caller does not wait for them any more."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

TERM_SEC = 2
TAIL_CHARS = 2000

_live: set[asyncio.subprocess.Process] = set()


class PodmanError(RuntimeError):
    """podman said no; the message has what it was asked and the end of what it said."""


def kill_all() -> None:
    """Kills every podman that starts, builds or pulls for this process. Removals go on."""
    for process in list(_live):
        _signal(process, signal.SIGKILL)


@dataclass(frozen=True)
class Podman:
    """The podman of this machine, with the variables through which it gets a configuration of its own."""

    variables: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, *arguments: str, removes: bool = False) -> str:
        """What podman printed. Raises PodmanError when it fails; if the caller is cancelled, podman is ended."""
        process = await asyncio.create_subprocess_exec(
            "podman",
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal leaves the end to us
            env=self._env(),
        )
        if not removes:
            _live.add(process)
        try:
            out, err = await process.communicate()
        except BaseException:
            await asyncio.shield(_end(process))
            raise
        finally:
            _live.discard(process)
        if process.returncode:
            said = (err or out).decode(errors="replace").strip()
            raise PodmanError(f"podman {arguments[0]} failed ({process.returncode}): {said[-TAIL_CHARS:]}")
        return out.decode(errors="replace")

    async def succeeds(self, *arguments: str) -> bool:
        """Whether a question such as `image exists NAME` is answered with yes."""
        try:
            await self(*arguments)
        except PodmanError:
            return False
        return True

    def now(self, *arguments: str, timeout_sec: float = 60, given: str = "") -> subprocess.CompletedProcess[str]:
        """The same without an event loop, with `given` to read. Raises OSError and TimeoutExpired."""
        return subprocess.run(
            ["podman", *arguments],
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_sec,
            env=self._env(),
        )

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.variables}


async def _end(process: asyncio.subprocess.Process) -> None:
    """A build has containers of its own, which it ends when asked to."""
    _signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(TERM_SEC):
            await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
