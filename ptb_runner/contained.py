"""Keeps an event loop alive when one of its tasks wants to end the program.

asyncio lets SystemExit and KeyboardInterrupt out of the loop, and all other tasks with it. An agent's host-side code
may raise them in tasks of its own (a library that calls sys.exit): here they are that task's error and nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Generator, Iterator
from typing import Any, override


def contain(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, no new task of the loop can end it."""
    loop.set_task_factory(lambda loop, work, **more: asyncio.Task(_Contained(work), loop=loop, **more))


class _Contained(Coroutine[Any, Any, Any]):
    """A task's coroutine; not an `async def` around it, which would leave it unawaited in a task cancelled early."""

    def __init__(self, work: Any) -> None:
        self._work = work

    @override
    def send(self, value: Any) -> Any:
        with _as_exceptions():
            return self._work.send(value)

    @override
    def throw(self, *how: Any) -> Any:
        with _as_exceptions():
            return self._work.throw(*how)

    @override
    def close(self) -> None:
        self._work.close()

    @override
    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


@contextlib.contextmanager
def _as_exceptions() -> Iterator[None]:
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        # Of the same name, which is what a trial's record shows of it.
        raise type(type(error).__name__, (Exception,), {})(*error.args) from error
