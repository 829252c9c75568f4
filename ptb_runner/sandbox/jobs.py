"""Commands in a sandbox, whatever it is made of: run them, feed them, drain them, and end what takes too long.

Nothing in here knows Harbor. Every object belongs to the event loop it was made in.
"""

import abc
import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ptb_runner.sandbox.output import Listener, Output
from ptb_runner.sandbox.transfer import PipeReader

KILL_SEC = 5
"""How long the end of a command's processes is waited for; after that the whole sandbox goes."""


@dataclass(frozen=True)
class Command:
    """A shell command, where it runs, its environment, and who runs it (None: the sandbox's own user)."""

    shell: str
    cwd: str | None
    env: dict[str, str]
    user: str | None = None


@dataclass(frozen=True)
class Job:
    """A command under way. `exit` gives its exit code, or None when the sandbox ended first."""

    name: str
    exit: asyncio.Future[int | None]


class Jobs(abc.ABC):
    """A running sandbox that takes commands; a kind of sandbox says how they get in."""

    def __init__(self) -> None:
        self._outputs: set[Output] = set()

    @abc.abstractmethod
    def pipe(self) -> tuple[int, int]:
        """A pipe to or from a command: the reading and the writing end, both ours until spawn() copied one."""

    @abc.abstractmethod
    def text(self, content: str) -> contextlib.AbstractContextManager[int]:
        """A descriptor from which a command reads `content`."""

    @abc.abstractmethod
    async def spawn(self, command: Command, stdout: int, stderr: int, stdin: int | None = None) -> Job:
        """Starts a command on its own copies of these descriptors; without stdin, its input is empty."""

    @abc.abstractmethod
    async def end(self, job: Job) -> None:
        """Ends a command with all its processes, or if they resist, the sandbox."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Ends the sandbox and all in it at once, without waiting."""

    @abc.abstractmethod
    def gone(self) -> RuntimeError:
        """What to raise when the sandbox has ended: why, as far as is known."""

    async def wait(self, job: Job, timeout_sec: float | None = None) -> int:
        """The exit code. When time is up (TimeoutError) or the caller is cancelled, all its processes die first.

        Raises RuntimeError when the sandbox ended.
        """
        try:
            async with asyncio.timeout(timeout_sec or None):
                code = await asyncio.shield(job.exit)
        except (TimeoutError, asyncio.CancelledError):
            await asyncio.shield(self.end(job))
            raise
        if code is None:
            raise self.gone()
        return code

    async def run(
        self,
        command: Command,
        timeout_sec: float | None = None,
        listeners: tuple[Listener | None, Listener | None] = (None, None),
    ) -> tuple[int, str, str]:
        """Exit code, standard output and standard error. Listeners get the two streams as they come. See wait()."""
        with self._collected(listeners[0]) as out, self._collected(listeners[1]) as err:
            job = await self.spawn(command, out.write_end, err.write_end)
            out.start()
            err.start()
            code = await self.wait(job, timeout_sec)
            return code, await out.finish(), await err.finish()

    async def feed(self, command: Command, write: Callable[[int], object], timeout_sec: float) -> tuple[int, str]:
        """Runs a command on what `write`, in a thread, writes to the pipe it gets and closes.

        Returns the exit code and the output. What `write` raises is raised, but for the command's own end of reading.
        """
        source, sink = self.pipe()
        with self._collected() as output:
            try:
                job = await self.spawn(command, output.write_end, output.write_end, source)
            except BaseException:
                os.close(sink)
                raise
            finally:
                os.close(source)
            output.start()
            writer = asyncio.ensure_future(asyncio.to_thread(write, sink))
            try:
                code = await self.wait(job, timeout_sec)
            finally:
                await asyncio.wait([writer], timeout=KILL_SEC)
                if not writer.done():
                    # A process inside kept the other end, and does not read: only its death frees the thread.
                    self.kill()
                (problem,) = await asyncio.gather(writer, return_exceptions=True)
            if isinstance(problem, BaseException) and not isinstance(problem, BrokenPipeError):
                raise problem
            return code, await output.finish()

    async def drain[T](
        self, command: Command, read: Callable[[PipeReader], T], timeout_sec: float, given: str = ""
    ) -> tuple[int, str, T | Exception]:
        """Runs a command, its input `given`, whose output `read` reads in a thread.

        Returns the exit code, standard error, and what `read` returned or raised.
        """
        source, sink = self.pipe()
        ended = threading.Event()
        with self._collected() as errors, self.text(given) as stdin:
            try:
                job = await self.spawn(command, sink, errors.write_end, stdin)
            except BaseException:
                os.close(source)
                raise
            finally:
                os.close(sink)
            errors.start()
            reader = asyncio.ensure_future(asyncio.to_thread(_read_and_close, read, source, ended))
            try:
                code = await self.wait(job, timeout_sec)
            finally:
                ended.set()
                (result,) = await asyncio.gather(reader, return_exceptions=True)
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
            return code, await errors.finish(), result

    @contextlib.contextmanager
    def _collected(self, listener: Listener | None = None) -> Iterator[Output]:
        output = Output(self.pipe(), listener)
        self._outputs.add(output)
        try:
            yield output
        finally:
            output.leave(self._outputs.discard)

    def close_outputs(self) -> None:
        """Stops dropping what ended commands' descendants still write; they are dead by now."""
        for output in list(self._outputs):
            output.close()


def _read_and_close[T](read: Callable[[PipeReader], T], fd: int, ended: threading.Event) -> T:
    stream = PipeReader(fd, ended)
    try:
        result = read(stream)
        # A reader may know the end before it comes; the writer must not die of a broken pipe.
        while stream.read(1 << 16):
            pass
        return result
    finally:
        os.close(fd)
