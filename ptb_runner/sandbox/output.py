"""What a command in a sandbox writes to one of its streams, on its way to the host."""

import asyncio
import codecs
import fcntl
import os
import sys
import termios
from collections.abc import Awaitable, Callable

KEPT_BYTES = 16 << 20
"""How much of a stream is returned; of more, the end."""

CHUNK = 1 << 16

Listener = Callable[[str], Awaitable[None]]


class Output:
    """A pipe that is read for as long as anybody holds its other end.

    A pipe and not a file: a program may open /dev/stdout anew, which would truncate a file. It is read after the end of
    the command too, because a process that it left in the background must not die of a broken pipe.
    """

    def __init__(self, pipe: tuple[int, int], listener: Listener | None = None) -> None:
        """`listener` gets the text as it comes; while it is busy, the command is held up. Closes both ends in time."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = pipe
        os.set_blocking(self._read_end, False)
        self._kept = bytearray()
        self._dropped = 0
        self._dropping = False
        self._pump: asyncio.Task[None] | None = None
        self._finishing = False
        self._news = asyncio.Event()

    def start(self) -> None:
        """Begins to read. The command must have its own copy of write_end by now."""
        self._close_write_end()
        self._pump = self._loop.create_task(self._read())

    async def finish(self) -> str:
        """What was written until now, without its beginning if that is too much. The command must have ended."""
        self._finishing = True
        self._news.set()
        if self._pump:
            await self._pump
        self._cut()
        note = f"[the first {self._dropped} bytes are left out]\n" if self._dropped else ""
        return note + self._kept.decode(errors="replace")

    def leave(self, closed: Callable[["Output"], object]) -> None:
        """Nobody waits for the output any more: drops what still comes, and calls `closed` when nothing can."""
        self._close_write_end()
        if self._pump and not self._pump.done():
            self._pump.cancel()
            self._pump.add_done_callback(lambda _: self._drop_rest(closed))
        else:
            self._drop_rest(closed)

    def close(self) -> None:
        """Stops dropping what still comes. Does nothing before leave()."""
        if self._dropping:
            self._dropping = False
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)

    def _drop_rest(self, closed: Callable[["Output"], object]) -> None:
        def drop() -> None:
            try:
                ended = not os.read(self._read_end, CHUNK)
            except BlockingIOError:
                return
            if ended:
                self.close()
                closed(self)

        self._dropping = True
        self._loop.add_reader(self._read_end, drop)
        drop()

    def _close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    async def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        left: int | None = None
        while left is None or left > 0:
            if left is None and self._finishing:
                # A background process may go on writing for ever: take what is there, and no more.
                left = self._waiting_bytes()
                continue
            try:
                chunk = os.read(self._read_end, CHUNK)
            except BlockingIOError:
                await self._more()
                continue
            if not chunk:
                return
            left = None if left is None else left - len(chunk)
            self._keep(chunk)
            if self._listener:
                await self._listener(decoder.decode(chunk))
            else:
                await asyncio.sleep(0)

    async def _more(self) -> None:
        """Returns when there is something to read, or finish() was called."""
        self._news.clear()
        if self._finishing:
            return
        self._loop.add_reader(self._read_end, self._news.set)
        try:
            await self._news.wait()
        finally:
            self._loop.remove_reader(self._read_end)

    def _waiting_bytes(self) -> int:
        return int.from_bytes(fcntl.ioctl(self._read_end, termios.FIONREAD, bytes(4)), sys.byteorder)

    def _keep(self, chunk: bytes) -> None:
        self._kept += chunk
        # Cut at twice the size only, so that no byte is moved more than once.
        if len(self._kept) > 2 * KEPT_BYTES:
            self._cut()

    def _cut(self) -> None:
        surplus = max(0, len(self._kept) - KEPT_BYTES)
        del self._kept[:surplus]
        self._dropped += surplus
