"""What SIGINT, SIGTERM and SIGHUP do to the trials of this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from ptb_runner.contained import contain

log = logging.getLogger(__name__)

# Sandboxes that are still there this long after an interrupt are killed without asking their programs.
GRACE_SEC = 1.0


def _signals() -> list[signal.Signals]:
    """What interrupts: Ctrl-C, SIGTERM, and the end of the terminal unless it is ignored (nohup)."""
    hangs_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangs_up]


class Interrupts:
    """What SIGINT, SIGTERM and SIGHUP do to the trials of this process.

    The first one cancels every trial, keeps others from starting, and soon after kills what sandboxes are left;
    further ones change nothing.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self.seen = False
        self._kill = kill
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work that an interrupt cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.seen:
            task.cancel()
        return task

    @contextlib.contextmanager
    def handled(self) -> Iterator[Interrupts]:
        """Handle the signals for as long as this lasts; must be entered in the loop of the main thread."""
        loop = asyncio.get_running_loop()
        contain(loop)
        for number in _signals():
            loop.add_signal_handler(number, self._interrupt, number)
        try:
            yield self
        finally:
            for number in _signals():
                loop.remove_signal_handler(number)

    def _interrupt(self, number: int) -> None:
        if self.seen:
            return
        self.seen = True
        log.warning("signal %s: cancelling %d trials", number, len(self._tasks))
        for task in list(self._tasks):
            task.cancel()
        asyncio.get_running_loop().call_later(GRACE_SEC, self._kill)
