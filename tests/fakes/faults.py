"""Which call of a loopback server fails, when, and how: tests add rules, its dispatcher asks here at each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fault:
    """One rule. `skip` calls go well, then `times` fail (-1: all), or all within `for_sec` of the first."""

    rpc: str  # the call's name, such as SandboxCreateV2; * is every one
    status: str = "UNAVAILABLE"
    message: str = "out of order (fake)"
    times: int = 1
    skip: int = 0
    for_sec: float | None = None
    # before: nothing is done. after: all is done, and the answer gets lost; of a stream, after its first message.
    when: str = "before"
    delay_sec: float = 0.0  # before anything else; with status OK that is all
    contains: str = ""  # only requests in which this text occurs
    first: float | None = field(default=None, init=False)

    def applies(self, rpc: str, request: str) -> bool:
        """Whether this call is hit; counts it."""
        if self.rpc not in (rpc, "*") or self.contains not in request:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        now = time.monotonic()
        self.first = now if self.first is None else self.first
        if self.for_sec is not None:
            return now - self.first < self.for_sec
        if self.times == 0:
            return False
        self.times -= 1
        return True


class Rules:
    """All rules; the first that applies to a call counts."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, rule: dict[str, Any]) -> None:
        with self._lock:
            self._rules.append(Fault(**rule))

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def of(self, rpc: str, request: Callable[[], str]) -> Fault | None:
        """The fault of a call; `request` gives its text, which is asked for only when a rule looks at it."""
        with self._lock:
            text = request() if any(rule.contains for rule in self._rules) else ""
            return next((rule for rule in self._rules if rule.applies(rpc, text)), None)
