"""Export to experiment trackers through their own clients: Weights & Biases, MLflow. A cell is a run.

Its configuration says what it was, with the provenance; its metrics are the scores and what was spent, and `reward`
over attempts. A run is found again by its id, so that exporting again adds nothing, and brings up to date what changed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptb_runner.cell import read_json, write_json
from ptb_runner.explain import UsageError
from ptb_runner.results.collect import cell_line, jsonl, trial_lines
from ptb_runner.results.row import Row

EXPORTED = "ptb_export.json"  # beside W&B's runs: what each was when it was written
_WHAT = ("cell_id", "benchmark", "model", "agent", "backend")


@dataclass(frozen=True)
class Run:
    """A cell as trackers see one."""

    id: str
    name: str
    config: dict[str, Any]
    metrics: dict[str, float]
    rewards: dict[int, float]
    provenance: dict[str, Any]
    trials: str

    @property
    def digest(self) -> str:
        """Changes with anything in it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def runs(rows: list[Row]) -> list[Run]:
    """The runs of cells that have trials."""
    return [_run(row) for row in rows if row.trials]


def _run(row: Row) -> Run:
    line = cell_line(row)
    began = min((trial["started_at"] or "" for trial in row.trials), default="")
    numbers = {
        name: float(value)
        for name, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "number"
    }
    rewards = [trial["reward"] for trial in row.trials if trial["reward"] is not None]
    return Run(
        id=hashlib.sha256(f"{row.cell_id} {row.number} {began}".encode()).hexdigest()[:16],
        name=f"{row.benchmark} x {row.model} x {row.agent}",
        config={name: getattr(row, name) for name in _WHAT}
        | {"overrides": line["overrides"], "outcome": row.outcome, "final_source": row.score["final_source"]},
        metrics=numbers,
        rewards=dict(enumerate(rewards, 1)),
        provenance=row.result["provenance"],
        trials=jsonl(trial_lines([row])),
    )


# --- Weights & Biases -------------------------------------------------------------------------------


def to_wandb(found: list[Run], folder: Path, project: str) -> int:
    """Write offline runs below `folder`/wandb, for `wandb sync`; how many were new or changed."""
    wandb = _client("wandb")
    before = read_json(folder / EXPORTED)
    known: dict[str, str] = before if isinstance(before, dict) else {}
    changed = [run for run in found if known.get(run.id) != run.digest or not _offline(folder, run)]
    folder.mkdir(parents=True, exist_ok=True)
    for run in changed:
        for old in _offline(folder, run):
            shutil.rmtree(old)
        _write_wandb(wandb, run, folder, project)
    if changed:
        wandb.teardown()  # only when its service has ended is all of it on disk
        write_json(folder / EXPORTED, known | {run.id: run.digest for run in changed})
    return len(changed)


def _offline(folder: Path, run: Run) -> list[Path]:
    return sorted(folder.glob(f"wandb/offline-run-*-{run.id}"))


def _write_wandb(wandb: Any, run: Run, folder: Path, project: str) -> None:
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
    quiet.x_disable_stats = quiet.x_disable_meta = True  # of this machine, where nothing ran
    config = run.config | {"provenance": run.provenance}
    made = wandb.init(
        project=project, id=run.id, name=run.name, dir=str(folder), mode="offline", config=config, settings=quiet
    )
    for attempt, reward in run.rewards.items():
        made.log({"reward": reward}, step=attempt)
    made.summary.update(run.metrics)
    made.finish()


# --- MLflow -----------------------------------------------------------------------------------------


def to_mlflow(found: list[Run], to: str, experiment: str) -> int:
    """Write runs to a tracking server or database (a URI), or into a folder; how many were new or changed."""
    _client("mlflow")
    local = None if "://" in to else Path(to).resolve()
    if local:
        local.mkdir(parents=True, exist_ok=True)
    client = _client("mlflow.tracking").MlflowClient(tracking_uri=f"sqlite:///{local / 'mlflow.db'}" if local else to)
    known = client.get_experiment_by_name(experiment)
    place = (local / "artifacts").as_uri() if local else None
    number = known.experiment_id if known else client.create_experiment(experiment, artifact_location=place)
    return sum(_write_mlflow(client, run, number) for run in found)


def _write_mlflow(client: Any, run: Run, experiment: str) -> bool:
    """Write a run unless it is there as it is; whether it was written."""
    there = client.search_runs([experiment], filter_string=f"tags.`ptb.run` = '{run.id}'")
    if there and there[0].data.tags.get("ptb.digest") == run.digest:
        return False
    tags = {"ptb.run": run.id, **dict(_flat(run.provenance, "provenance."))}
    made = there[0] if there else client.create_run(experiment, run_name=run.name, tags=tags)
    own = made.info.run_id
    for name, value in run.config.items() if not there else ():
        client.log_param(own, name, str(value)[:6000])
    for name, value in run.metrics.items():
        client.log_metric(own, name, value)
    for attempt, reward in run.rewards.items():
        client.log_metric(own, "reward", reward, step=attempt)
    client.log_dict(own, run.provenance, "provenance.json")
    client.log_text(own, run.trials, "trials.jsonl")
    client.set_tag(own, "ptb.digest", run.digest)  # last: a run that was cut short is written again
    client.set_terminated(own)
    return True


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}{key}." if isinstance(inner, dict) else f"{name}{key}")
    elif value not in (None, []):
        yield name, str(value)[:5000]


def _client(name: str) -> Any:
    """A module of an extra, imported only now."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(f"--format {name}: its client is not installed\n  pip install 'ptb-runner[{name}]'") from None
