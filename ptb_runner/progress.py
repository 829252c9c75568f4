"""What a cell's trials are doing and what they have cost: read by the display and status.json, written by the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ptb_runner.cell import Cell, write_status
from ptb_runner.config import Config
from ptb_runner.outcome import Outcome, worst


@dataclass
class Progress:
    """What a cell's trials are doing right now."""

    expected: int
    finished: dict[str, str] = field(default_factory=dict)
    running: dict[str, tuple[str, float]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)  # what is left of these is for judges
    gpu_hours: float = 0.0
    usd: float = 0.0
    trial_sec: float = 0.0
    server_gpu_hours: Callable[[], float] = lambda: 0.0  # until now, of the model server
    last_error: str | None = None
    notify: Callable[[str], None] = lambda line: None

    def phase(self, trial: str, phase: str) -> None:
        """A trial has entered a phase."""
        self.running[trial] = (phase, time.time())

    def end(self, record: dict[str, Any], config: Config) -> None:
        """A trial is over."""
        self.count(record, config)
        self.notify(f"{record['name']}: {record['outcome']}{detail(record)}")

    def count(self, record: dict[str, Any], config: Config) -> None:
        """Add a finished trial to what is shown: its outcome, what it cost, its error."""
        self.running.pop(record["name"], None)
        self.finished[record["name"]] = record["outcome"]
        hours, usd = spent(record, config)
        self.gpu_hours += hours
        self.usd += usd
        self.trial_sec += record["durations_sec"]["total"] or 0.0
        if record["error"]:
            self.last_error = f"{record['name']}{because(record)}"

    def write(self, cell: Cell, state: str) -> None:
        """Put it into the cell's status.json."""
        counts: dict[str, int] = {}
        for outcome in self.finished.values():
            counts[outcome] = counts.get(outcome, 0) + 1
        attempts = {
            "expected": self.expected,
            "finished": len(self.finished),
            "running": {name: phase for name, (phase, _) in self.running.items()},
            "by_outcome": counts,
        }
        served = self.server_gpu_hours()
        outcome = Outcome.cancelled if state == "cancelled" else worst(list(self.finished.values()))
        write_status(
            cell,
            state,
            str(outcome) if outcome else None,
            attempts,
            since={name: since for name, (_, since) in self.running.items()},
            spent={
                "gpu_hours": round(self.gpu_hours + served, 6),
                "usd": round(self.usd + served * cell.config.backend.usd_per_gpu_hour, 6),
                "trial_sec": round(self.trial_sec, 3),
            },
            error=self.last_error,
        )


def spent(record: dict[str, Any], config: Config) -> tuple[float, float]:
    """What a trial has cost so far: GPU-hours, and dollars for its LLM, its judges and those GPUs."""
    times = record["durations_sec"]
    hours = config.benchmark.gpus * sum(times[phase] or 0.0 for phase in ("environment", "agent", "verifier")) / 3600
    llms = (record["cost_usd"] or 0.0) + (record["judge_cost_usd"] or 0.0)
    return hours, llms + hours * config.backend.usd_per_gpu_hour


def detail(record: dict[str, Any]) -> str:
    reward = "" if record["reward"] is None else f" (reward {record['reward']:g})"
    return f"{reward}{because(record)}"


def because(record: dict[str, Any]) -> str:
    error = record["error"]
    first = error["message"].strip().splitlines()[:1] if error else []
    return f": {error['type']}: {first[0][:200]}" if error and first else ""
