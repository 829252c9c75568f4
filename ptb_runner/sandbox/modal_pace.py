"""Keeps this process below the rate at which Modal lets sandboxes be created."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """A token bucket: `burst` turns at once, then `per_sec` a second, in the order of asking."""

    def __init__(self, per_sec: float, burst: int = 1) -> None:
        self._interval = 1 / per_sec
        self._burst = burst
        self._next = 0.0  # when the next turn would be, were the bucket empty

    async def turn(self) -> None:
        """Wait for a turn. One that is given up while waiting is lost, not passed on."""
        now = time.monotonic()
        self._next = max(self._next, now - self._interval * (self._burst - 1)) + self._interval
        await asyncio.sleep(max(0.0, self._next - self._interval - now))


_paces: dict[float, Pace] = {}


def pace(per_sec: float) -> Pace:
    """The one pace of this process, whatever number of cells run in it."""
    return _paces.setdefault(per_sec, Pace(per_sec))
