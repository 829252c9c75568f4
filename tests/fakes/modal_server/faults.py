"""Which call fails, when, and how: tests say so over HTTP, the dispatcher asks here at each call."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from grpclib import GRPCError, Status


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

    @property
    def error(self) -> GRPCError | None:
        return None if self.status == "OK" else GRPCError(Status[self.status], self.message)


class Faults:
    """All rules; the first that applies to a call counts."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []

    def add(self, rule: dict[str, Any]) -> None:
        self._rules.append(Fault(**rule))

    def clear(self) -> None:
        self._rules.clear()

    async def before(self, rpc: str, request: Any) -> GRPCError | None:
        """Called before a call is done; raises the error of a fault, or returns the one to raise afterwards."""
        text = str(request) if any(rule.contains for rule in self._rules) else ""
        fault = next((rule for rule in self._rules if rule.applies(rpc, text)), None)
        if not fault:
            return None
        await asyncio.sleep(fault.delay_sec)
        if fault.error and fault.when == "before":
            raise fault.error
        return fault.error
