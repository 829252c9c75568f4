"""The model servers of one process: cells that need the same one share it; it ends with the last of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ptb_runner import redact, serve
from ptb_runner.cell import Cell, write_json
from ptb_runner.config import Config, VllmServeConfig
from ptb_runner.server import Server, ServerError


@dataclass
class _Shared:
    """A server over all its starts."""

    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    server: Server | None = None
    starts: int = 0
    reason: str = ""
    has_turn: bool = False


def key(config: Config) -> str | None:
    """What tells the server that a cell needs from others; None: it needs none."""
    if serve.settings(config) is None:
        return None
    needs = [dataclasses.asdict(config.serve), config.model.hub_id or config.model.id, config.model.revision]
    needs.append(serve.address(config))  # which decides where it listens
    return hashlib.sha256(json.dumps(needs, sort_keys=True).encode()).hexdigest()[:8]


class Servers:
    """Starts servers when they are first needed; of those that take this machine's GPUs, one runs at a time.

    Cells must come sorted by `key`: one that waits for its server's turn would else keep those from running that the
    other server waits for.
    """

    def __init__(self, cells: list[Cell], logs: Path) -> None:
        self._left = Counter(key(cell.config) for cell in cells)
        self._logs = logs
        self._shared: dict[str | None, _Shared] = {}
        self._turn = asyncio.Lock()

    async def running(self, cell: Cell, notify: Callable[[str], None]) -> Server:
        """The cell's server, ready; started anew if it died. Raises ServerError when it cannot be had."""
        name = key(cell.config)
        shared = self._shared.setdefault(name, _Shared())
        async with shared.starting:
            if shared.server is None or shared.server.gone.is_set():
                if not shared.has_turn and isinstance(cell.config.serve, VllmServeConfig):
                    await self._turn.acquire()
                    shared.has_turn = True
                shared.server = await self._started(cell, shared, notify)
        self._note(cell, shared.server, shared.starts)
        return shared.server

    def _note(self, cell: Cell, server: Server, starts: int) -> None:
        """Leave in the cell what really ran, for its result's provenance."""
        log = os.path.relpath(self._log(cell.config), cell.folder)
        write_json(cell.folder / "serve.json", server.about() | {"starts": starts, "log": log})

    def _log(self, config: Config) -> Path:
        return self._logs / ("serve.log" if len(self._left) == 1 else f"serve-{key(config)}.log")

    async def _started(self, cell: Cell, shared: _Shared, notify: Callable[[str], None]) -> Server:
        """A server that is ready, after as many tries as it has."""
        config, redactor = cell.config, redact.redactor(cell)
        tries = 1 + (config.serve.max_restarts if isinstance(config.serve, VllmServeConfig) else 0)
        if shared.server is not None:
            shared.reason = shared.server.reason
            await shared.server.end()
        while shared.starts < tries:
            if shared.reason:
                notify(f"serve: {shared.reason}\nserve: starting it again ({shared.starts} of {tries - 1})")
            shared.starts += 1
            begun = time.monotonic()
            server = Server(config, self._log(config), redactor)
            notify(f"serve: waiting for {serve.served_name(config)}: {serve.describe(config).splitlines()[0]}")
            try:
                await server.start()
            except ServerError as error:
                shared.reason = str(error)
                continue
            notify(f"serve: ready after {time.monotonic() - begun:.0f} s")
            return server
        raise ServerError(shared.reason)

    @contextlib.asynccontextmanager
    async def until_over(self, cell: Cell) -> AsyncIterator[None]:
        """While this lasts the cell may need its server; every cell must come by, once."""
        try:
            yield
        finally:
            await self._release(key(cell.config))

    async def _release(self, name: str | None) -> None:
        self._left[name] -= 1
        shared = self._shared.get(name)
        if shared is None or self._left[name] > 0:
            return
        if shared.server is not None:
            await shared.server.end()
        if shared.has_turn:
            shared.has_turn = False
            self._turn.release()
