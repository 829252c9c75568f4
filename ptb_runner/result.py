"""A cell's result.json: written after each run, and anew when judges, reviewers or a verifier had their say."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ptb_runner import cell as cells
from ptb_runner import provenance, servers, trial_folders
from ptb_runner.cell import Cell, read_json, write_json
from ptb_runner.explain import UsageError
from ptb_runner.outcome import score, worst
from ptb_runner.progress import because, spent


def write_result(cell: Cell, names: list[str], started_at: str) -> dict[str, Any]:
    """Write result.json from the trials' folders; it holds one record for each trial that was begun."""
    config = cell.config
    trials = [trial_folders.read(cell, name) for name in names if (cell.job / name).is_dir()]
    before = read_json(cell.folder / "result.json") or {}
    result = {
        "schema_version": cells.SCHEMA_VERSION,
        "cell_id": cell.id,
        "benchmark": config.benchmark.id,
        "model": config.model.id,
        "agent": config.agent.id,
        "backend": config.backend.kind,
        "tasks": list(dict.fromkeys(name.rpartition("__")[0] for name in names)),
        "attempts": config.attempts,
        "pass_reward": config.benchmark.pass_reward,
        "max_error_rate": config.report.max_error_rate,
        "trials": trials,
        "score": score(trials, len(names), config.benchmark, config.model.id),
        "server_gpu_hours": servers.gpu_hours(cell),
        "started_at": before.get("started_at", started_at),
        "finished_at": cells.now(),
        "provenance": provenance.provenance(cell, trials),
    }
    write_json(cell.folder / "result.json", result)
    return result


def rescore(cell: Cell) -> dict[str, Any]:
    """Write the cell's result anew from its trials' folders, after judges, reviewers or a verifier had their say.

    Raises UsageError when there is no result yet.
    """
    path = cell.folder / "result.json"
    before, state = read_json(path), read_json(cell.folder / "status.json")
    if not isinstance(before, dict) or not isinstance(state, dict):
        raise UsageError(f"{cell.folder}: has no result yet\n  ptb resume {cell.folder}")
    trial_folders.end_regrades(cell)
    trials = [trial_folders.read(cell, trial["name"]) for trial in before["trials"]]
    final = score(trials, before["score"]["n_expected"], cell.config.benchmark, cell.config.model.id)
    result = before | {"trials": trials, "score": final, "rescored_at": cells.now()}
    write_json(path, result)
    outcomes = [trial["outcome"] for trial in trials]
    last = next((trial for trial in reversed(trials) if trial["error"]), None)
    served = (servers.gpu_hours(cell) or 0.0) * cell.config.backend.usd_per_gpu_hour
    usd = sum(spent(trial, cell.config)[1] for trial in trials) + served
    state |= {"outcome": worst(outcomes), "error": f"{last['name']}{because(last)}" if last else None}
    state["attempts"] |= {"by_outcome": dict(Counter(outcomes))}
    state["spent"] |= {"usd": round(usd, 6)}
    write_json(cell.folder / "status.json", state | {"launcher": cells.owner(cell), "updated_at": cells.now()})
    return result
