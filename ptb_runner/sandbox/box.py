"""A running sandbox, seen from the host: its bwrap process and the channel to the init in it.

Nothing in here knows Harbor. Every object belongs to the event loop it was made in.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ptb_runner.sandbox import bwrap
from ptb_runner.sandbox.output import Listener, Output
from ptb_runner.sandbox.transfer import PipeReader

START_SEC = 30
KILL_SEC = 5
"""How long the end of a command's processes is waited for; after that the whole sandbox goes."""

CREDENTIALS = struct.Struct("3i")

_live: set["Box"] = set()


@dataclass(frozen=True)
class Command:
    """A shell command, where it runs and its whole environment."""

    shell: str
    cwd: str
    env: dict[str, str]


@dataclass(frozen=True)
class Job:
    """A command under way. `exit` gives its exit code, or None when the sandbox ended first."""

    number: int
    exit: asyncio.Future[int | None]


def kill_all() -> None:
    """Kills every sandbox of this process at once, without waiting. For signal handlers of the event loop."""
    for box in list(_live):
        box.kill()


class Box:
    """One sandbox. Made by `await Box.start(layout)`; ended by `await box.stop()`."""

    def __init__(self, layout: bwrap.Layout) -> None:
        self.pid: int | None = None
        """Of the sandbox's init, in the host's numbers; None until it said that it runs."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._exits: dict[int, asyncio.Future[int | None]] = {}
        self._outputs: set[Output] = set()
        self._count = 0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        # The kernel then attaches the sender's pid, which no process inside can know or forge.
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            # In a session of its own, so that Ctrl-C in the terminal leaves the end to us.
            self._process = subprocess.Popen(
                bwrap.init_command(bwrap.find(), layout, theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                start_new_session=True,
                env={},
            )
        _live.add(self)
        self._loop.add_reader(self._channel, self._receive)

    @classmethod
    async def start(cls, layout: bwrap.Layout) -> "Box":
        """Raises RuntimeError, with what bwrap said, when the sandbox does not come up; then nothing is left of it.

        The sandbox dies with the calling thread, by the kernel's hand: call from the thread of the event loop.
        """
        box = cls(layout)
        try:
            async with asyncio.timeout(START_SEC):
                await box._ready
        except BaseException:
            await box.stop()
            raise
        if box.pid is None:
            await box.stop()
            raise RuntimeError(f"the sandbox did not start: {box.last_words()}")
        return box

    def spawn(self, command: Command, stdout: int, stderr: int, stdin: int | None = None) -> Job:
        """Starts a command on these descriptors (its own copies); without stdin, its input is empty.

        Only ever pass pipes and files in memory: a process inside could open a passed file again, with more rights.
        """
        self._count += 1
        job = Job(self._count, self._loop.create_future())
        wanted = {"command": command.shell, "cwd": command.cwd, "env": command.env}
        with _in_memory(json.dumps(wanted)) as request:
            fds = [request.fileno(), stdout, stderr, *([] if stdin is None else [stdin])]
            self._send({"run": job.number}, fds)
        self._exits[job.number] = job.exit
        return job

    async def wait(self, job: Job, timeout_sec: float | None = None) -> int:
        """The exit code. When time is up (TimeoutError) or the caller is cancelled, all its processes die first.

        Raises RuntimeError when the sandbox ended.
        """
        try:
            async with asyncio.timeout(timeout_sec or None):
                code = await asyncio.shield(job.exit)
        except (TimeoutError, asyncio.CancelledError):
            await asyncio.shield(self._end(job))
            raise
        if code is None:
            raise self._gone()
        return code

    async def run(
        self,
        command: Command,
        timeout_sec: float | None = None,
        listeners: tuple[Listener | None, Listener | None] = (None, None),
    ) -> tuple[int, str, str]:
        """Exit code, standard output and standard error. Listeners get the two streams as they come. See wait()."""
        with self._collected(listeners[0]) as out, self._collected(listeners[1]) as err:
            job = self.spawn(command, out.write_end, err.write_end)
            out.start()
            err.start()
            code = await self.wait(job, timeout_sec)
            return code, await out.finish(), await err.finish()

    async def feed(self, command: Command, write: Callable[[int], object], timeout_sec: float) -> tuple[int, str]:
        """Runs a command on what `write`, in a thread, writes to the pipe it gets and closes.

        Returns the exit code and the output. What `write` raises is raised, but for the command's own end of reading.
        """
        source, sink = os.pipe()
        with self._collected() as output:
            try:
                job = self.spawn(command, output.write_end, output.write_end, source)
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
        source, sink = os.pipe()
        ended = threading.Event()
        with self._collected() as errors, _in_memory(given) as stdin:
            try:
                job = self.spawn(command, sink, errors.write_end, stdin.fileno())
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
        output = Output(listener)
        self._outputs.add(output)
        try:
            yield output
        finally:
            output.leave(self._outputs.discard)

    def kill(self) -> None:
        """Ends the sandbox and all in it at once, without waiting."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Ends the sandbox. Afterwards none of its processes exists. May be called again."""
        self.kill()
        # bwrap ends after its child, pid 1 of the namespace, which the kernel lets go only after all others.
        await asyncio.to_thread(self._process.wait, KILL_SEC)
        self._lost()
        for output in self._outputs:
            output.close()
        _live.discard(self)

    def last_words(self) -> str:
        """The last line that bwrap or the init wrote to their standard error."""
        size = os.fstat(self._said.fileno()).st_size
        lines = os.pread(self._said.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "bwrap said nothing"

    def _gone(self) -> RuntimeError:
        return RuntimeError(f"the sandbox is gone: {self.last_words()}")

    async def _end(self, job: Job) -> None:
        with contextlib.suppress(RuntimeError):
            self._send({"kill": job.number})
        await asyncio.wait([job.exit], timeout=KILL_SEC)
        if not job.exit.done():
            # Processes that breed faster than they are killed, or a stopped supervisor.
            await self.stop()

    def _send(self, message: dict[str, int], fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], fds or [])
        except OSError:
            raise self._gone() from None

    def _receive(self) -> None:
        try:
            data, extra, _, _ = self._channel.recvmsg(4096, socket.CMSG_SPACE(CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", []
        if not data:
            self._lost()
            return
        message = json.loads(data)
        if "ready" in message:
            self.pid = CREDENTIALS.unpack(extra[0][2])[0]
            self._ready.set_result(None)
        elif (exit_ := self._exits.pop(message["exit"], None)) and not exit_.done():
            exit_.set_result(message["code"])

    def _lost(self) -> None:
        """The other end of the channel is closed: nothing will be answered any more."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._channel.close()
        for future in (self._ready, *self._exits.values()):
            if not future.done():
                future.set_result(None)
        self._exits.clear()


def _in_memory(text: str) -> BinaryIO:
    """A file that is on no file system, to be read from its start."""
    file = os.fdopen(os.memfd_create("input", os.MFD_CLOEXEC), "w+b")
    file.write(text.encode(errors="surrogateescape"))
    file.seek(0)
    return file


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
