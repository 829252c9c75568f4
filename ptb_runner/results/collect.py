"""Gather a sweep's results from its cells' folders: a line a trial, a line a cell, and a leaderboard.

What is written depends on the files of the cells and on nothing else: not on the clock, not on where the folder
lies, not on an earlier collection. Nothing is remembered from one collection to the next: reading everything again
takes a second, and a memory is one more thing that can be wrong.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import shlex
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_runner.cell import SCHEMA_VERSION
from ptb_runner.explain import UsageError
from ptb_runner.results import stats
from ptb_runner.results.leaderboard import page, standings
from ptb_runner.results.row import Row
from ptb_runner.results.rows import ENDED, read_rows
from ptb_runner.results.scores import agent_scores

PHASES = ("environment", "agent", "verifier", "total")
TOKENS = ("input", "cached", "output")


@dataclass(frozen=True)
class Collected:
    """What a collection found and wrote; `problems` has a line for each thing that could not be read or is not over."""

    folder: Path
    paths: list[Path]
    n_cells: int
    n_trials: int
    n_scored: int
    n_expected: int
    problems: list[str]

    @property
    def complete(self) -> bool:
        """Whether every planned trial was read and is scored."""
        return self.n_scored == self.n_expected > 0 and not self.problems

    @property
    def headline(self) -> str:
        """All of it in a line."""
        return _headline(self.n_cells, self.n_trials, self.n_scored, self.n_expected, self.problems)


def collect(folder: Path) -> Collected:
    """Write results.jsonl, results.csv, leaderboard.md and metrics.json into the folder of a sweep or of one cell.

    Where cells ran a dataset stats.txt, too; metrics.json then has their statistics, those of an only cell at its top.

    The cells' own files are only read. Raises UsageError when the folder is neither, or cannot be written to.
    """
    if folder.is_file():
        raise UsageError(f"{folder}: a file, there is no place in it\n  ptb report {folder}, or ptb export {folder}")
    rows = read_rows(folder)
    problems = [f"cell {row.number}: {problem}" for row in rows for problem in row.problems]
    totals = _totals(rows)
    entries = standings(rows)
    weighted = agent_scores(rows)
    lines = [cell_line(row) for row in rows]
    spent = {key: _sum(line[key] for line in lines) for key in _SUMS}
    datasets = stats.of_datasets(rows)
    tables: dict[str, Any] = {"leaderboard": entries, "scores": [dataclasses.asdict(one) for one in weighted]}
    tables |= {"datasets": datasets} if datasets else {}
    metrics = {"schema_version": SCHEMA_VERSION, **totals, **spent, **tables, "problems": problems}
    if len(rows) == len(datasets) == 1:
        metrics = datasets[0] | metrics
    written = {
        "results.jsonl": jsonl(trial_lines(rows)),
        "results.csv": csv_text(lines),
        "leaderboard.md": page(entries, weighted, problems, f"{_headline(**totals, problems=problems)}."),
        "metrics.json": json.dumps(metrics, indent=2, allow_nan=False) + "\n",
    }
    written |= {"stats.txt": stats.page(datasets)} if datasets else {}
    paths = [_write(folder / name, text) for name, text in written.items()]
    return Collected(folder=folder, paths=paths, **totals, problems=problems)


def _totals(rows: list[Row]) -> dict[str, int]:
    return {
        "n_cells": len(rows),
        "n_trials": sum(len(row.trials) for row in rows),
        "n_scored": sum(row.score["n_scored"] for row in rows),
        "n_expected": sum(row.score["n_expected"] or 0 for row in rows),
    }


def _headline(n_cells: int, n_trials: int, n_scored: int, n_expected: int, problems: list[str]) -> str:
    also = f", {_count(len(problems), 'problem')}" if problems else ""
    return (
        f"{_count(n_cells, 'cell')}, {_count(n_trials, 'trial')}, {n_scored}/{n_expected} planned trials scored{also}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _write(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(text.encode(errors="backslashreplace"))
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return path


# --- A line a trial, a line a cell --------------------------------------------------------------------


def _identity(row: Row) -> dict[str, Any]:
    names = ("number", "cell_id", "benchmark", "model", "agent", "backend", "overrides")
    return {name: getattr(row, name) for name in names}


def trial_lines(rows: list[Row]) -> Iterator[dict[str, Any]]:
    """The trials of results.jsonl."""
    return (_identity(row) | {"folder": row.folder} | trial for row in rows for trial in row.trials)


def jsonl(lines: Iterable[dict[str, Any]]) -> str:
    """A line of JSON for each."""
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def csv_text(lines: list[dict[str, Any]]) -> str:
    """Numbers in full precision, nothing for null, true and false as in JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(lines[0] if lines else [])
    for line in lines:
        writer.writerow(str(value).lower() if isinstance(value, bool) else value for value in line.values())
    return out.getvalue()


_SUMS = ("cost_usd", "gpu_hours", "server_gpu_hours", *(f"{kind}_tokens" for kind in TOKENS))


def cell_line(row: Row) -> dict[str, Any]:
    """A cell in results.csv: durations are means over its trials (seconds); tokens, dollars, GPU-hours are sums.

    `gpu_hours` are those of sandboxes, `server_gpu_hours` the cell's share of its model server's.

    Trials that do not report a figure are not in it; it is null when none does.
    """
    found, trials = row.score, row.trials
    return {
        **_identity(row),
        "overrides": shlex.join(row.overrides),
        "state": row.state,
        "outcome": row.outcome,
        "raw": found["raw"],
        "final": found["final"],
        "final_source": found["final_source"],
        "n_expected": found["n_expected"],
        "n_scored": found["n_scored"],
        "coverage": found["n_scored"] / found["n_expected"] if found["n_expected"] else None,
        "comparable": row.result["provenance"]["comparable"],
        "flags": " ".join(sorted({flag for trial in trials for flag in trial["flags"]})),
        **{f"mean_{phase}_sec": _mean(trial["durations_sec"][phase] for trial in trials) for phase in PHASES},
        **{f"{kind}_tokens": _sum(trial["tokens"][kind] for trial in trials) for kind in TOKENS},
        "cost_usd": _sum(trial["cost_usd"] for trial in trials),
        "gpu_hours": _gpu_hours(row),
        "server_gpu_hours": row.server_gpu_hours,
        "started_at": row.result.get("started_at"),
        "finished_at": row.result.get("finished_at"),
        "error": _error(row),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    if not known:
        return None
    return sum(known) if all(isinstance(value, int) for value in known) else math.fsum(known)


def _gpu_hours(row: Row) -> float | None:
    """benchmark.gpus x hours of sandbox, agent and verifier, as `ptb_runner.progress.spent` counts them."""
    seconds = _sum(trial["durations_sec"][phase] for trial in row.trials for phase in PHASES[:3])
    return None if seconds is None or row.gpus is None else row.gpus * seconds / 3600


def _error(row: Row) -> str | None:
    """The first trial's error, else the runner's own, in one line."""
    texts = [f"{one['error']['type']}: {one['error']['message']}" for one in row.trials if one["error"]]
    if row.runner_error and row.state not in (*ENDED, "running"):
        texts.append(row.runner_error)
    return " ".join(texts[0].split()) if texts else None
