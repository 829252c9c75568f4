"""How far a sweep is, from its folder alone: read the cells' status files, show them, follow them.

The same code serves the process that runs the sweep, `ptb status` in another one, and a sweep whose jobs live
on a cluster.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ptb_runner.cell import read_json
from ptb_runner.sweepfile import read_sweep
from ptb_runner.times import clock

OVER = frozenset({"finished", "cancelled", "skipped", "failed", "lost"})
REFRESH_SEC = 5.0
ROWS = 15  # running trials that the table lists; the rest is counted


@dataclass(frozen=True)
class CellState:
    """What a cell's status.json says; `state` is `unreadable` when it cannot be read."""

    number: int
    label: str
    state: str
    outcome: str | None = None
    expected: int = 0
    finished: int = 0
    running: dict[str, str] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    gpu_hours: float = 0.0
    usd: float = 0.0
    trial_sec: float = 0.0
    error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state in OVER


# What was read of each status file, by the file's identity: most cells of a large sweep do not change between looks.
_seen: dict[Path, tuple[tuple[int, int, int], CellState]] = {}
_plans: dict[Path, tuple[int, dict[str, Any]]] = {}


def read(sweep: Path) -> list[CellState]:
    """The state of every cell of a sweep, in the order of sweep.yaml."""
    return [_read_cell(sweep, entry) for entry in _plan(sweep)["cells"]]


def _plan(sweep: Path) -> dict[str, Any]:
    changed = (sweep / "sweep.yaml").stat().st_mtime_ns if (sweep / "sweep.yaml").exists() else 0
    if sweep not in _plans or _plans[sweep][0] != changed:
        _plans[sweep] = (changed, read_sweep(sweep))
    return _plans[sweep][1]


def _read_cell(sweep: Path, entry: dict[str, Any]) -> CellState:
    path = sweep / entry["folder"] / "status.json"
    label = " x ".join((entry["benchmark"], entry["model"], entry["agent"]))
    try:
        stat = path.stat()
    except OSError:
        return CellState(entry["number"], label, "unreadable", error="no status.json")
    identity = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    if path not in _seen or _seen[path][0] != identity:
        _seen[path] = (identity, _state(entry["number"], label, read_json(path)))
    return _seen[path][1]


def _state(number: int, label: str, content: Any) -> CellState:
    try:
        attempts, spent = content["attempts"], content["spent"]
        return CellState(
            number=number,
            label=label,
            state=content["state"],
            outcome=content["outcome"],
            expected=attempts["expected"],
            finished=attempts["finished"],
            running=attempts["running"],
            since=content["since"],
            gpu_hours=spent["gpu_hours"],
            usd=spent["usd"],
            trial_sec=spent["trial_sec"],
            error=content["error"],
        )
    except (KeyError, TypeError) as error:
        return CellState(number, label, "unreadable", error=f"status.json is not whole: {error!r}")


# --- Showing ------------------------------------------------------------------------------------------


def summary(states: list[CellState]) -> str:
    """A sweep in a line."""
    cells = Counter(state.state for state in states)
    outcomes = Counter(state.outcome for state in states if state.state == "finished")
    ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items(), key=str))
    other = [f"{cells[name]} {name}" for name in cells if name != "finished"]
    trials = f"trials {sum(state.finished for state in states)}/{sum(state.expected for state in states)}"
    parts = [
        f"cells {cells['finished']}/{len(states)} finished{f' ({ended})' if ended else ''}",
        *other,
        trials,
        _money(states),
        _eta(states),
    ]
    return ", ".join(part for part in parts if part)


def _money(states: list[CellState]) -> str:
    gpu_hours, usd = sum(state.gpu_hours for state in states), sum(state.usd for state in states)
    return ", ".join(
        text for text, amount in ((f"{gpu_hours:.2f} GPU-hours", gpu_hours), (f"${usd:.2f}", usd)) if amount
    )


def _eta(states: list[CellState]) -> str:
    """Time left if the trials to come take as long as those that are over, with as many at once as now."""
    finished = sum(state.finished for state in states)
    at_once = sum(len(state.running) for state in states)
    left = sum(state.expected - state.finished for state in states if not state.is_over)
    if not finished or not at_once or not left:
        return ""
    mean = sum(state.trial_sec for state in states) / finished
    return f"about {clock(mean * left / at_once)} left"


def table(states: list[CellState]) -> Group:
    """A sweep on a terminal: the running trials (the first ones of many), the last error, the line."""
    running = [(state, name) for state in states if not state.is_over for name in sorted(state.running)]
    rows = Table.grid(padding=(0, 2))
    now = time.time()
    for state, name in running[:ROWS]:
        elapsed = clock(now - state.since.get(name, now))
        rows.add_row(str(state.number), escape(state.label), escape(name), state.running[name], elapsed)
    if len(running) > ROWS:
        rows.add_row("", f"and {len(running) - ROWS} more trials")
    errors = [f"last error: cell {state.number}: {state.error}" for state in states if state.error][-1:]
    return Group(rows, *(escape(line)[:400] for line in errors), escape(summary(states)))


def ending(state: CellState) -> str:
    """What to say of a cell that has just ended."""
    why = f": {state.error.strip().splitlines()[0][:300]}" if state.error and state.outcome != "scored" else ""
    said = state.outcome if state.state == "finished" else state.state
    return f"cell {state.number} ({state.label}): {said}, {state.finished}/{state.expected} trials{why}"


# --- Following ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def shown(sweep: Path, interval_sec: float, out: Console) -> Iterator[None]:
    """Show the sweep for as long as this lasts, from a thread: a live table on a terminal, lines elsewhere."""
    with meanwhile(lambda over: follow(sweep, interval_sec, out, over)):
        yield


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Do some work in a thread for as long as this lasts; its event is set at the end, and it is waited for."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def follow(
    sweep: Path,
    interval_sec: float,
    out: Console,
    over: threading.Event,
    *,
    until_over: bool = False,
    refresh: Callable[[], None] = lambda: None,
) -> None:
    """Tell at once when a cell ends, and how far the sweep is, until `over` is set (or all cells are over).

    `refresh` is called every REFRESH_SEC: it may bring states up to what a cluster says.
    """
    known = {state.number for state in read(sweep) if state.is_over}
    with Live(console=out, auto_refresh=False, transient=True) if out.is_terminal else contextlib.nullcontext() as live:
        said = refreshed = time.monotonic()
        last = False
        while not last:
            last = over.wait(0.5 if out.is_terminal else min(0.5, interval_sec))
            if time.monotonic() - refreshed >= REFRESH_SEC:
                refresh()
                refreshed = time.monotonic()
            states = read(sweep)
            last = last or (until_over and all(state.is_over for state in states))
            for state in states:
                if state.is_over and state.number not in known:
                    known.add(state.number)
                    out.print(ending(state), markup=False)
            if live:
                live.update(table(states), refresh=True)
            elif time.monotonic() - said >= interval_sec and not last:
                said = time.monotonic()
                out.print(summary(states), markup=False)
