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
from collections.abc import Iterator
from typing import BinaryIO, override

from ptb_runner.sandbox import bwrap
from ptb_runner.sandbox.jobs import KILL_SEC, Command, Job, Jobs

START_SEC = 30

CREDENTIALS = struct.Struct("3i")

_live: set["Box"] = set()


def kill_all() -> None:
    """Kills every sandbox of this process at once, without waiting. For signal handlers of the event loop."""
    for box in list(_live):
        box.kill()


class Box(Jobs):
    """One sandbox. Made by `await Box.start(layout)`; ended by `await box.stop()`."""

    def __init__(self, layout: bwrap.Layout) -> None:
        super().__init__()
        self.pid: int | None = None
        """Of the sandbox's init, in the host's numbers; None until it said that it runs."""
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._exits: dict[int, asyncio.Future[int | None]] = {}
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

    @override
    def pipe(self) -> tuple[int, int]:
        return os.pipe()

    @override
    @contextlib.contextmanager
    def text(self, content: str) -> Iterator[int]:
        with _in_memory(content) as file:
            yield file.fileno()

    @override
    async def spawn(self, command: Command, stdout: int, stderr: int, stdin: int | None = None) -> Job:
        """Only ever pass pipes and files in memory: a process inside could open a passed file with more rights."""
        self._count += 1
        job = Job(str(self._count), self._loop.create_future())
        wanted = {"command": command.shell, "cwd": command.cwd, "env": command.env}
        with _in_memory(json.dumps(wanted)) as request:
            fds = [request.fileno(), stdout, stderr, *([] if stdin is None else [stdin])]
            self._send({"run": self._count}, fds)
        self._exits[self._count] = job.exit
        return job

    @override
    def kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Ends the sandbox. Afterwards none of its processes exists. May be called again."""
        self.kill()
        # bwrap ends after its child, pid 1 of the namespace, which the kernel lets go only after all others.
        await asyncio.to_thread(self._process.wait, KILL_SEC)
        self._lost()
        self.close_outputs()
        _live.discard(self)

    def last_words(self) -> str:
        """The last line that bwrap or the init wrote to their standard error."""
        size = os.fstat(self._said.fileno()).st_size
        lines = os.pread(self._said.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "bwrap said nothing"

    @override
    def gone(self) -> RuntimeError:
        return RuntimeError(f"the sandbox is gone: {self.last_words()}")

    @override
    async def end(self, job: Job) -> None:
        with contextlib.suppress(RuntimeError):
            self._send({"kill": int(job.name)})
        await asyncio.wait([job.exit], timeout=KILL_SEC)
        if not job.exit.done():
            # Processes that breed faster than they are killed, or a stopped supervisor.
            await self.stop()

    def _send(self, message: dict[str, int], fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], fds or [])
        except OSError:
            raise self.gone() from None

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
