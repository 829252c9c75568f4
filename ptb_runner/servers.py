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
from typing import Any

from ptb_runner import redact, serve
from ptb_runner.cell import Cell, read_json, write_json
from ptb_runner.config import Config, VllmServeConfig
from ptb_runner.meter import Meter
from ptb_runner.server import Server, ServerError


@dataclass
class _Shared:
    """A server over all its starts."""

    meter: Meter
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


def log_of(folder: Path) -> Path | None:
    """The log of the server that was started for the cell in a folder; None: none was."""
    log = (read_json(folder / "serve.json") or {}).get("log")
    return folder / log if log else None


def gpu_hours(cell: Cell) -> float | None:
    """What a cell has had of its servers' GPU-hours, as far as was noted; None: of no server of ours."""
    return (read_json(cell.folder / "serve.json") or {}).get("gpu_hours")


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
        shared = self._shared.setdefault(key(cell.config), _Shared(Meter(serve.server_gpus(cell.config))))
        shared.meter.joins(cell.folder, gpu_hours(cell) or 0.0)
        self._note(cell, {})
        async with shared.starting:
            if shared.server is None or shared.server.gone.is_set():
                if not shared.has_turn and isinstance(cell.config.serve, VllmServeConfig):
                    await self._turn.acquire()
                    shared.has_turn = True
                shared.server = await self._started(cell, shared, notify)
        self._note(cell, shared.server.about() | {"starts": shared.starts})
        return shared.server

    def gpu_hours(self, cell: Cell) -> float:
        """The cell's share of its server's GPU-hours until now, which is noted in the cell, too."""
        if (shared := self._shared.get(key(cell.config))) is None or not shared.meter.gpus:
            return 0.0
        hours = round(shared.meter.of(cell.folder), 6)
        self._note(cell, {"gpu_hours": hours})
        return hours

    def leave(self, cell: Cell) -> None:
        """The cell's trials are over: from now on the server's time is that of the others."""
        if shared := self._shared.get(key(cell.config)):
            shared.meter.leaves(cell.folder)
            self.gpu_hours(cell)

    def _note(self, cell: Cell, more: dict[str, Any]) -> None:
        """Leave in the cell what really ran and for how long, for its result."""
        path, config = cell.folder / "serve.json", cell.config
        known = read_json(path) or {"kind": config.serve.kind, "served_name": serve.served_name(config)}
        if isinstance(config.serve, VllmServeConfig):
            known |= {"log": os.path.relpath(self._log(config), cell.folder)}
        write_json(path, known | more)

    def _log(self, config: Config) -> Path:
        return self._logs / ("serve.log" if len(self._left) == 1 else f"serve-{key(config)}.log")

    async def _started(self, cell: Cell, shared: _Shared, notify: Callable[[str], None]) -> Server:
        """A server that is ready, after as many tries as it has."""
        config, redactor = cell.config, redact.redactor(cell)
        tries = 1 + (config.serve.max_restarts if isinstance(config.serve, VllmServeConfig) else 0)
        if shared.server is not None:
            shared.reason = shared.server.reason
            await shared.server.end()
            shared.meter.ends()
        while shared.starts < tries:
            if shared.reason:
                notify(f"serve: {shared.reason}\nserve: starting it again ({shared.starts} of {tries - 1})")
            shared.starts += 1
            begun = time.monotonic()
            server = Server(config, self._log(config), redactor)
            notify(f"serve: waiting for {serve.served_name(config)}: {serve.describe(config).splitlines()[0]}")
            shared.meter.starts()
            try:
                await server.start()
            except BaseException as error:
                shared.meter.ends()
                if not isinstance(error, ServerError):
                    raise
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
