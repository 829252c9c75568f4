"""The GPU time of a model server, divided among the cells that use it: every moment counts once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field


@dataclass
class Meter:
    """Hours of a server's GPUs by cell. Moments at which no cell uses the server go to the next that does."""

    gpus: int
    clock: Callable[[], float] = time.monotonic
    hours: dict[Hashable, float] = field(default_factory=dict)
    _users: set[Hashable] = field(default_factory=set)
    _since: float | None = None
    _nobodys: float = 0.0

    def starts(self) -> None:
        """The server's process begins."""
        self._count()
        self._since = self.clock()

    def ends(self) -> None:
        """The server's process is over."""
        self._count()
        self._since = None

    def joins(self, user: Hashable, hours: float) -> None:
        """A cell begins to use the server, having had so many hours of earlier ones."""
        self._count()
        if user not in self._users:
            self._users.add(user)
            self.hours[user] = self.hours.get(user, hours) + self._nobodys
            self._nobodys = 0.0

    def leaves(self, user: Hashable) -> None:
        """A cell needs the server no more."""
        self._count()
        self._users.discard(user)

    def of(self, user: Hashable) -> float:
        """The hours of a cell until now."""
        self._count()
        return self.hours.get(user, 0.0)

    def _count(self) -> None:
        if self._since is None:
            return
        now = self.clock()
        passed, self._since = (now - self._since) / 3600 * self.gpus, now
        for user in self._users:
            self.hours[user] += passed / len(self._users)
        self._nobodys += 0.0 if self._users else passed
