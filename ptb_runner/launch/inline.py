"""Cells concurrently in this process: one event loop, at most `launcher.max_cells` cells at a time."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from ptb_runner import backend, harbor_job, limits, redact, run, servers, watch
from ptb_runner.cell import Busy, Cell, check_unchanged, locked, mark, read_json
from ptb_runner.config import InlineConfig
from ptb_runner.explain import UsageError
from ptb_runner.interrupts import Interrupts
from ptb_runner.launch import Ended
from ptb_runner.outcome import Outcome
from ptb_runner.servers import Servers

log = logging.getLogger(__name__)

# The cell that the current task works for; a task inherits it from the one that started it.
_current: contextvars.ContextVar[tuple[Path, redact.Redactor] | None] = contextvars.ContextVar("cell", default=None)


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Run the cells; Ctrl-C and SIGTERM stop them cleanly."""
    settings = cells[0].config.launcher
    assert isinstance(settings, InlineConfig)
    with _logged(), watch.shown(sweep, cells[0].config.progress.interval_sec, out):
        return asyncio.run(_run_all(sweep, cells, settings))


async def _run_all(sweep: Path, cells: list[Cell], settings: InlineConfig) -> Ended:
    harbor_job.quiet_harbor()
    shared = asyncio.Semaphore(settings.max_trials) if settings.max_trials else None
    slots = asyncio.Semaphore(settings.max_cells)
    cells = sorted(cells, key=lambda cell: servers.key(cell.config) or "")  # which Servers asks for
    served = Servers(cells, sweep)
    with Interrupts(backend.of(cells[0].config).kill_all).handled() as interrupts:
        run.reap(cells[0])
        await asyncio.gather(*(_run_one(sweep, cell, interrupts, slots, shared, served) for cell in cells))
        return Ended.interrupted if interrupts.seen else Ended.over


async def _run_one(
    sweep: Path,
    cell: Cell,
    interrupts: Interrupts,
    slots: asyncio.Semaphore,
    shared: asyncio.Semaphore | None,
    served: Servers,
) -> None:
    """One cell; whatever goes wrong with it is its own, is written down, and hurts no other."""
    async with slots, served.until_over(cell):
        if interrupts.seen or is_over(cell):
            return
        if reason := limits.reason_not_to_start(sweep, cell.config):
            mark(cell, "skipped", reason)
            return
        _current.set((cell.folder, redact.redactor(cell)))
        try:
            with locked(cell.folder):
                check_unchanged(cell)
                await run.run_trials(cell, redact.redactor(cell), interrupts, served, shared=shared)
        except Busy as error:
            log.warning("%s", error)  # its state is the other runner's to write
        except UsageError as error:
            mark(cell, "failed", str(error))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # SystemExit, too: another's code may raise anything
            log.exception("the runner failed")
            with contextlib.suppress(OSError):  # a full disk, perhaps: the watcher sees what it can
                mark(cell, "failed", f"{type(error).__name__}: {error}")


def is_over(cell: Cell) -> bool:
    """Whether nothing is left to do for a cell."""
    state = read_json(cell.folder / "status.json") or {}
    attempts = state.get("attempts", {})
    done = attempts.get("finished", 0) >= cell.n_trials
    return state.get("state") == "finished" and done and Outcome.judge_missing not in attempts.get("by_outcome", {})


class _CellLog(logging.Handler):
    """Writes each record to the runner.log of the cell that it is about, without that cell's secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        if (current := _current.get()) is None:
            return
        folder, secrets = current
        with contextlib.suppress(OSError), (folder / "runner.log").open("a") as file:
            file.write(secrets.text(self.format(record)) + "\n")


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    handler = _CellLog(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before
        root.setLevel(level)
