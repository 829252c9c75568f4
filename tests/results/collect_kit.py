"""Folders of cells and sweeps as runners leave them, made from what each trial is to have come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ptb_runner.cell import SCHEMA_VERSION, write_json
from ptb_runner.config import BenchmarkConfig, MissingScore
from ptb_runner.outcome import score, trial_record, worst

LATER = "2026-01-02T03:05:05+00:00"


@dataclass(frozen=True)
class Made:
    """What a cell is to be; `trials` holds a reward (scored), an outcome's name, or None (begun, not over) each.

    `review` is that of every trial, as a judge's finding makes it; `tasks` are those of the trials, if they differ.
    """

    trials: Sequence[float | str | None] = (1.0, 1.0)
    benchmark: str = "hello"
    model: str = "nano"
    agent: str = "oracle"
    overrides: Sequence[str] = ()
    state: str = "finished"
    expected: int | None = None
    gpus: int = 0
    missing_score: str = "nothing"
    zero_shot: dict[str, float] = field(default_factory=dict)
    not_comparable: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)
    saved: bool = True
    weight: float | None = None
    models: Sequence[str] = ()
    review: dict[str, Any] | None = None
    tasks: Sequence[str] = ()
    identity: dict[str, Any] = field(default_factory=dict)

    @property
    def n_expected(self) -> int:
        return len(self.trials) if self.expected is None else self.expected


def cell_id(number: int) -> str:
    return f"{number:012x}"


def make_sweep(folder: Path, *cells: Made) -> Path:
    """A sweep's folder with these cells, numbered from 0."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, made in enumerate(cells):
        make_cell(folder / str(number), made, number)
    write_sweep(folder, [entry(number, made) for number, made in enumerate(cells)])
    return folder


def entry(number: int, made: Made) -> dict[str, Any]:
    """A cell in sweep.yaml."""
    return {
        "number": number,
        "id": cell_id(number),
        "overrides": list(made.overrides),
        "folder": str(number),
        "benchmark": made.benchmark,
        "model": made.model,
        "agent": made.agent,
        "backend": "bubblewrap",
    }


def write_sweep(folder: Path, entries: list[dict[str, Any]]) -> None:
    content = {"schema_version": SCHEMA_VERSION, "updated_at": LATER, "launcher": "inline", "cells": entries}
    (folder / "sweep.yaml").write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))


def make_cell(folder: Path, made: Made, number: int = 0) -> Path:
    """A cell's folder."""
    folder.mkdir(parents=True)
    (folder / "cell.yaml").write_text(cell_yaml(made, number))
    for attempt, outcome in enumerate(made.trials, 1):
        make_trial(folder / "job" / f"{made.benchmark}__{attempt:03d}", outcome)
    over = [attempt for attempt, outcome in enumerate(made.trials, 1) if outcome is not None]
    trials = [trial_record(folder / "job" / f"{made.benchmark}__{attempt:03d}", attempt) for attempt in over]
    trials = [trial | ({"review": made.review} if made.review else {}) for trial in trials]
    trials = [trial | {"task": task} for trial, task in zip(trials, made.tasks, strict=True)] if made.tasks else trials
    write_status(folder, made, trials, number)
    if made.saved and made.state in ("finished", "cancelled"):
        write_json(folder / "result.json", result(made, trials, number))
    return folder


def cell_yaml(made: Made, number: int) -> str:
    benchmark = {
        "id": made.benchmark,
        "kind": "harbor",
        "agent_hours": 0.1,
        "gpus": made.gpus,
        "zero_shot": made.zero_shot,
        "missing_score": made.missing_score,
        "weight": made.weight,
        "models": list(made.models),
    }
    config = {
        "benchmark": benchmark,
        "model": {"id": made.model, "hub_id": None},
        "agent": {"id": made.agent, "options": made.options},
        "backend": {"kind": "bubblewrap"},
        "attempts": made.n_expected,
    }
    content = {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell_id(number),
        "created_at": LATER,
        "overrides": list(made.overrides),
        "config": config,
        "identity": {f"agent.options.{key}": value for key, value in made.options.items()} | made.identity,
    }
    return yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, width=120)


def make_trial(folder: Path, outcome: float | str | None) -> None:
    """A trial's folder as Harbor and the verifier leave it: 10 s of sandbox, 20 s of agent, 30 s of verifier."""
    folder.mkdir(parents=True)
    if outcome is None:
        return
    written: dict[str, Any] = {
        "task_name": "ptb/hello",
        "trial_name": folder.name,
        "task_checksum": "c0ffee",
        "agent_info": {"name": "oracle", "version": "1.0.0"},
        "agent_result": {"n_input_tokens": 100, "n_output_tokens": 10, "n_cache_tokens": None, "cost_usd": 0.25},
        "started_at": "2026-01-02T03:04:00+00:00",
        "finished_at": "2026-01-02T03:05:01+00:00",
        "environment_setup": _timing("03:04:00", "03:04:10"),
        "agent_execution": _timing("03:04:10", "03:04:30"),
        "verifier": _timing("03:04:30", "03:05:00"),
    }
    if isinstance(outcome, float):
        written["verifier_result"] = {"rewards": {"reward": outcome}}
    elif outcome in ("infra_error", "cancelled"):
        kind = "CancelledError" if outcome == "cancelled" else "EnvironmentStartTimeoutError"
        info = {"exception_type": kind, "exception_message": "no\nroom", "occurred_at": "2026-01-02T03:04:20+00:00"}
        written["exception_info"] = info
    else:
        (folder / "verifier").mkdir()
        verdict = {"outcome": outcome, "reason": f"this is {outcome}"}
        (folder / "verifier" / "verdict.json").write_text(json.dumps(verdict))
    (folder / "result.json").write_text(json.dumps(written, indent=4))


def _timing(begin: str, end: str) -> dict[str, str]:
    return {"started_at": f"2026-01-02T{begin}+00:00", "finished_at": f"2026-01-02T{end}+00:00"}


def write_status(folder: Path, made: Made, trials: list[dict[str, Any]], number: int) -> None:
    outcomes = [trial["outcome"] for trial in trials]
    attempts = {"expected": made.n_expected, "finished": len(trials), "running": {}, "by_outcome": {}}
    write_json(
        folder / "status.json",
        {
            "schema_version": SCHEMA_VERSION,
            "cell_id": cell_id(number),
            "state": made.state,
            "outcome": "cancelled" if made.state == "cancelled" else worst(outcomes),
            "attempts": attempts,
            "error": "RuntimeError: out of luck" if made.state == "failed" else None,
            "updated_at": LATER,
        },
    )


def result(made: Made, trials: list[dict[str, Any]], number: int) -> dict[str, Any]:
    policy = BenchmarkConfig(missing_score=MissingScore[made.missing_score], zero_shot=made.zero_shot)
    return {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell_id(number),
        "benchmark": made.benchmark,
        "model": made.model,
        "agent": made.agent,
        "backend": "bubblewrap",
        "trials": trials,
        "score": score(trials, made.n_expected, policy, made.model),
        "started_at": "2026-01-02T03:03:59.000+00:00",
        "finished_at": "2026-01-02T03:05:02.000+00:00",
        "provenance": {
            "versions": {"ptb-runner": "0.1.0", "harbor": "0.26.0", "modal": None, "python": "3.12.1"},
            "git": None,
            "comparable": not made.not_comparable,
            "not_comparable_because": list(made.not_comparable),
        },
    }
