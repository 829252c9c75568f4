"""Faults (see tests/fakes/faults.py) as the errors of a gRPC server of grpclib."""

from __future__ import annotations

import asyncio
from typing import Any

from grpclib import GRPCError, Status

from tests.fakes.faults import Rules


class Faults(Rules):
    """The rules, and what they do to a call."""

    async def before(self, rpc: str, request: Any) -> GRPCError | None:
        """Called before a call is done; raises the error of a fault, or returns the one to raise afterwards."""
        fault = self.of(rpc, lambda: str(request))
        if not fault:
            return None
        await asyncio.sleep(fault.delay_sec)
        error = None if fault.status == "OK" else GRPCError(Status[fault.status], fault.message)
        if error and fault.when == "before":
            raise error
        return error
