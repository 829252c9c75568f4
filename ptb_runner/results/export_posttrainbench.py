"""Export in PostTrainBench's form: folders that the benchmark's own collect and aggregate scripts accept unchanged.

    RESULTS/<agent>_<its LLM>_<hours>h[_<n>gpu][_<what else was set>][_<experiment>][_run<k>]/   one method
        ptb_method.json                                what the method is, so that no other is ever put into it
        <benchmark>_<org>_<model>_<run id>/            one trial: exactly four fields, the last one an integer
            metrics.json  time_taken.txt  judgement_<judge>[_rerun].json  solve_out.txt  ...  ptb_run.json

Their scripts take the newest run of a method for each benchmark and model, so the k-th repeat goes to a method of its
own, and a second sweep, which would take the first one's place, is refused. A run without metrics.json counts as the
base model's zero-shot score, which is right for a trial that left nothing to score and wrong for an infrastructure
error: those are not written, but told.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from ptb_runner import trace
from ptb_runner.cell import read_json, write_json
from ptb_runner.config import options
from ptb_runner.explain import UsageError
from ptb_runner.outcome import SCORED, UNSCORABLE, Outcome
from ptb_runner.results.published import RUN
from ptb_runner.results.row import Row

METHOD = "ptb_method.json"
UNFINISHED = "_unfinished"  # in RESULTS; their scripts pass over names that begin with an underscore
REQUIRED = ("gpt5_4", "api", "ptb_lookup")  # judges without whose verdict their scripts leave a whole method out

Models = Literal["none", "copy", "link"]

_EXPORTED = SCORED | UNSCORABLE | {Outcome.judge_missing}
# Which task it was, how often and where: the same for every method. Anything else that was set makes another one.
_NO_METHOD = ("benchmark.", "model.", "attempts", "seed", "task_sha256", "identity", "backend.", "launcher.")
_CHOICES = ("benchmark", "model", "agent", "backend", "launcher", "seed", "attempts", "parity")


@dataclass(frozen=True)
class _Cell:
    """A row with what its cell.yaml says."""

    row: Row
    folder: Path
    config: dict[str, Any]
    identity: dict[str, Any]


@dataclass(frozen=True)
class _Run:
    """A trial to be exported: where it is, its id and its job's, and whose method it is."""

    cell: _Cell
    trial: dict[str, Any]
    source: Path
    id: str
    job_id: str | None
    method: dict[str, Any]


def export(
    folder: Path, rows: list[Row], results: Path, experiment: str | None, models: Models
) -> tuple[list[Path], list[str]]:
    """Write the trials of these rows below `results`; the folders, and what a reader must be told.

    Exporting again brings the same folders up to date. Folders of others are never touched. Raises UsageError before
    anything is written when another sweep's runs would no longer count.
    """
    told: list[str] = []
    runs = list(_runs(_cells(folder, rows, told), experiment, told))
    known = _exported(results)
    _check_others(results, [run for run in runs if run.id not in known])
    paths: list[Path] = []
    unjudged: set[str] = set()
    for run in runs:
        place = known.get(run.id) or _place(results, run)
        known[run.id] = place
        unjudged |= _write(place, results / UNFINISHED, run)
        if models != "none" and not _keep_model(place, _model(run), models):
            told.append(f"cell {run.cell.row.number}: {run.trial['name']}: its model was not kept: not exported")
        paths.append(place)
    if unjudged:
        told.append(
            f"no verdict of {', '.join(sorted(unjudged))} in some scored runs: the benchmark's own scripts leave out "
            f"their methods until they are judged (ptb rejudge {folder})"
        )
    return paths, told


def _cells(folder: Path, rows: list[Row], told: list[str]) -> Iterator[_Cell]:
    for row in rows:
        try:
            content = yaml.load((folder / row.folder / "cell.yaml").read_text(), yaml.CSafeLoader)
            cell = _Cell(row, folder / row.folder, content["config"], content["identity"])
            kind = cell.config["benchmark"]["kind"]
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
            told.append(f"cell {row.number}: has no readable cell.yaml: not exported")
            continue
        if kind == "post_train":
            yield cell
        else:
            told.append(f"cell {row.number}: {row.benchmark} trains no model: PostTrainBench has no form for it")


def _runs(cells: Iterable[_Cell], experiment: str | None, told: list[str]) -> Iterator[_Run]:
    counts: Counter[tuple[str, ...]] = Counter()
    for cell in cells:
        settings = _settings(cell)
        key = (json.dumps(settings, sort_keys=True), cell.row.benchmark, cell.row.model)
        before = counts[key]
        counts[key] += cell.row.score["n_expected"] or len(cell.row.trials)
        for trial in cell.row.trials:
            if trial["outcome"] not in _EXPORTED:
                told.append(f"cell {cell.row.number}: {trial['name']} is {trial['outcome']}: not exported")
                continue
            source = cell.folder / trial["trial_dir"]
            method = {"settings": settings, "experiment": experiment, "repeat": before + trial["attempt"]}
            yield _Run(cell, trial, source, *_ids(source, cell, trial), method)


def _check_others(results: Path, new: list[_Run]) -> None:
    """Refuse to put a run beside one of another job that is of the same method, benchmark and model."""
    methods = [(path.parent, read_json(path)) for path in sorted(results.glob(f"*/{METHOD}"))]
    for run in new:
        same = [folder for folder, method in methods if method == run.method]
        for path in (path for folder in same for path in folder.glob(f"{_task(run.cell)}_*/{RUN}")):
            other = read_json(path)
            if not isinstance(other, dict) or other.get("job_id") != run.job_id:
                raise UsageError(
                    f"{path.parent}: is of another sweep with the same settings, and would count no longer: of a "
                    "method's runs the newest does\n  --experiment NAME makes this sweep a method of its own"
                )


# --- Names ------------------------------------------------------------------------------------------


def _exported(results: Path) -> dict[str, Path]:
    """The runs that earlier exports wrote here, by trial."""
    found = {}
    for path in sorted(results.glob(f"*/*/{RUN}")):
        marker = read_json(path)
        if isinstance(marker, dict) and isinstance(marker.get("trial_id"), str):
            found[marker["trial_id"]] = path.parent
    return found


def _ids(source: Path, cell: _Cell, trial: dict[str, Any]) -> tuple[str, str | None]:
    """Harbor's ids of the trial, which no other has (an earlier try of the same trial is another), and of its job."""
    found = read_json(source / "result.json")
    result: dict[str, Any] = found if isinstance(found, dict) else {}
    own = result.get("id")
    known = own if isinstance(own, str) else f"{cell.row.cell_id} {trial['name']} {trial['started_at']}"
    return known, (result.get("config") or {}).get("job_id")


def _place(results: Path, run: _Run) -> Path:
    """A folder for a trial that has none yet."""
    method = _method(results, run.cell, run.method)
    started = run.trial["started_at"]
    run_id = int(datetime.fromisoformat(started).timestamp()) if started else 1
    names = (method / f"{_task(run.cell)}_{number}" for number in range(run_id, run_id + 10_000))
    return next(path for path in names if not path.exists())


def _method(results: Path, cell: _Cell, own: dict[str, Any]) -> Path:
    """The method's folder. One that is of another method, or of somebody else's making, is never used."""
    name = "_".join(_parts(cell, own["experiment"]))
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:6]
    again = f"_run{own['repeat']}" if own["repeat"] > 1 else ""
    for folder in (results / f"{name}{again}", results / f"{name}_{digest}{again}"):
        if not folder.exists():
            folder.mkdir(parents=True)
            write_json(folder / METHOD, own)
        if read_json(folder / METHOD) == own:
            return folder
    raise UsageError(f"{results / name}: is another's, and so is {folder.name}\n  choose another folder for --to")


def _parts(cell: _Cell, experiment: str | None) -> Iterator[str]:
    agent = cell.config["agent"]
    hours, gpus = _hours(cell.config), cell.config["benchmark"]["gpus"]
    yield _safe(agent["id"])
    yield _safe(agent["model"] or "none")
    yield f"{hours:g}h" if hours is not None else "0h"
    if gpus > 1:
        yield f"{gpus}gpu"
    if variant := _variant(cell):
        yield variant
    if experiment:
        yield experiment


def _safe(name: str) -> str:
    """Fit for a folder's name; underscores may stay."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "_", name).strip("_.") or "none"


def _hours(config: dict[str, Any]) -> float | None:
    """As budget.agent_hours has it."""
    benchmark = config["benchmark"]
    exact = benchmark.get("limits", {}).get("agent_sec")
    chosen = (config["agent"]["timeout_hours"], config["budget"]["hours"])
    given = (*chosen, None if exact is None else exact / 3600, benchmark["agent_hours"])
    return next((hours for hours in given if hours is not None), None)


def _changed(cell: _Cell) -> list[str]:
    """The overrides that make a method of its own: all but which task, which agent, where and how often."""
    beside = {item.key for item in options() if not item.result}.union(_CHOICES)
    return [text for text in cell.row.overrides if text.partition("=")[0].lstrip("+~") not in beside]


def _variant(cell: _Cell) -> str:
    """These overrides in a readable form, short enough for a folder's name; a hash ends what had to be cut."""
    shown = "_".join(_safe(text.lstrip("+~").rpartition(".")[2]) for text in _changed(cell) if not _is_hours(text))
    return shown if len(shown) <= 60 else f"{shown[:50]}-{_hash(shown)}"


def _is_hours(text: str) -> bool:
    return text.startswith(("budget.hours=", "agent.timeout_hours=", "agent.model="))  # in the name already


def _settings(cell: _Cell) -> dict[str, Any]:
    """What a method is: all that can change a result but the task, and what was overridden in the task itself."""
    own = {key: value for key, value in cell.identity.items() if not key.startswith(_NO_METHOD)}
    changed = [text for text in _changed(cell) if text.lstrip("+~").startswith(("benchmark.", "model."))]
    return own | {"hours": _hours(cell.config), "gpus": cell.config["benchmark"]["gpus"], "changed": sorted(changed)}


def _task(cell: _Cell) -> str:
    """<benchmark>_<org>_<model>: three fields, so none may hold an underscore."""
    model = cell.config["model"]
    org, _, name = (model["hub_id"] or f"local/{model['id']}").partition("/")
    return "_".join(_field(text) for text in (cell.config["benchmark"]["id"], org, name))


def _field(text: str) -> str:
    """A name without underscores and separators. One that loses any ends in a hash, so that no two become the same."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-") or "none"
    return plain if plain == text else f"{plain}-{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


# --- One run ----------------------------------------------------------------------------------------


def _write(place: Path, unfinished: Path, run: _Run) -> set[str]:
    """Write a run's folder, whole or not at all, or bring it up to date; the required judges without a verdict."""
    new = not place.exists()
    folder = unfinished / run.id.replace("/", "-") if new else place
    if new:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    judged = _write_files(folder, run.trial, run.source)
    _copy_logs(folder, run.cell, run.source)
    write_json(folder / RUN, _marker(run))
    if new:
        folder.rename(place)
        if not any(unfinished.iterdir()):
            unfinished.rmdir()
    return set[str]() if run.trial["outcome"] in UNSCORABLE - {Outcome.flagged} else set[str](REQUIRED) - judged


def _marker(run: _Run) -> dict[str, Any]:
    """Everything that their form has no place for: with it the run can be read back as what it was."""
    row = run.cell.row
    names = ("number", "cell_id", "benchmark", "model", "agent", "backend", "overrides", "gpus", "benchmark_options")
    return {
        "schema_version": 1,
        "trial_id": run.id,
        "job_id": run.job_id,
        "cell": {name: getattr(row, name) for name in names},
        "n_expected": row.score["n_expected"],
        "trial": run.trial,
        "provenance": row.result["provenance"],
    }


def _write_files(folder: Path, trial: dict[str, Any], source: Path) -> set[str]:
    """Score, time and verdicts; the judges that have given one."""
    metrics = _metrics(trial, source)
    if metrics is None:
        (folder / "metrics.json").unlink(missing_ok=True)
    else:
        write_json(folder / "metrics.json", metrics)
    seconds = trial["durations_sec"]["agent"]
    if seconds is not None:
        minutes = int(seconds) // 60
        (folder / "time_taken.txt").write_text(f"{minutes // 60:02d}:{minutes % 60:02d}:{int(seconds) % 60:02d}\n")
    judged = set()
    for path in sorted(source.glob("judgements/*.json")):
        content = read_json(path)
        verdict = content.get("verdict") if isinstance(content, dict) else None
        if isinstance(verdict, dict):  # a judge that failed leaves none, and no file: it must not read as a clean one
            write_json(folder / f"judgement_{path.stem}.json", verdict)
            judged.add(path.stem.removesuffix("_rerun"))
    return judged


def _metrics(trial: dict[str, Any], source: Path) -> dict[str, Any] | None:
    """metrics.json with the key that their scripts read; None for a trial that has no score.

    A judged trial has one all the same: it is their script that puts the base model's in its place.
    """
    reward = trial["reward"]
    if reward is None and trial["outcome"] in (Outcome.flagged, Outcome.judge_missing):
        result = read_json(source / "result.json")
        rewards = (result.get("verifier_result") or {}).get("rewards") if isinstance(result, dict) else None
        reward = (rewards or {}).get("reward")
    return None if reward is None else {**(trial["metrics"] or {}), "accuracy": reward}


def _copy_logs(folder: Path, cell: _Cell, source: Path) -> None:
    """What the agent was told, said and left, and what the evaluation printed; what is not there is left out."""
    agent = cell.config["agent"]["name"]
    logs = sorted(source.glob("agent/*.txt"), key=lambda path: (path.stem == agent, path.stat().st_size))
    copies = {
        "cell.yaml": cell.folder / "cell.yaml",  # no secret is in it
        "prompt.txt": cell.folder / "task" / "instruction.md",
        "system_monitor.log": source / "agent" / "system_monitor.log",
        "output.log": source / "verifier" / "test-stdout.txt",
        "error.log": source / "trial.log",
        **({"solve_out.txt": logs[-1]} if logs else {}),
    }
    for path in source.glob("verifier/evaluation_*.log"):
        number, _, kind = path.name.removeprefix("evaluation_").partition(".")
        copies |= {f"final_eval_{number}.txt": path} if kind == "log" else {}
    for name, path in copies.items():
        if path.is_file() and not path.is_symlink():
            shutil.copyfile(path, folder / name)
    if read := trace.read(source):
        (folder / "solve_parsed.txt").write_text(trace.text(read), errors="replace")
    snapshot = source / "artifacts" / "logs" / "artifacts" / "workspace"
    if snapshot.is_dir() and not (folder / "task").exists():
        shutil.copytree(snapshot, folder / "task", symlinks=True)


def _model(run: _Run) -> Path:
    return run.cell.folder / "handoff" / run.trial["name"] / "final_model"


def _keep_model(place: Path, model: Path, models: Models) -> bool:
    """Put a copy of the model or a link to it into a run's folder; whether it is there now."""
    target = place / "final_model"
    if target.exists() or not model.is_dir():
        return target.exists()
    target.unlink(missing_ok=True)  # a link to where it was
    if models == "link":
        target.symlink_to(model.resolve(), target_is_directory=True)
    else:
        partial = place / ".final_model.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(model, partial)
        partial.rename(target)
    return True
