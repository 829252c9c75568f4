"""Read Harbor jobs that ptb_runner did not make (`harbor run` leaves them in jobs/) as rows.

A row is one agent, with one LLM and one set of arguments, on one data set; a task of no data set is one of its own.
Only what Harbor wrote down is said: whether the limits were a benchmark's own is not known of such a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_runner.cell import cell_id
from ptb_runner.config import BenchmarkConfig
from ptb_runner.explain import UsageError
from ptb_runner.outcome import score, trial_record
from ptb_runner.results.row import OriginForm, Row, TrialForm, Unreadable, formed, is_there, read_json, tried

ORIGIN = "ptb_cell.json"  # in a job that `ptb export --format harbor` copied: which cell it was
NO_MODEL = "none"  # as in conf/model/none.yaml: a Harbor job's LLM is the agent's

# data set or task, agent, and what makes it another agent
Key = tuple[str, str, tuple[str, ...]]


def found(folder: Path) -> list[Path]:
    """The Harbor job in a folder, or those directly below it; empty when there is none."""
    if _is_job(folder):
        return [folder]
    return [child for child in _folders(folder) if _is_job(child)]


def plain(folder: Path) -> list[Path]:
    """Those of them that no cell was exported to: what their trials came to is read off Harbor's own files."""
    return [job for job in found(folder) if not is_there(job / ORIGIN)]


def rows(folder: Path, jobs: list[Path]) -> list[Row]:
    """The rows of these jobs, numbered from 0."""
    found: list[Row] = []
    for job in jobs:
        place = job.relative_to(folder).as_posix()
        if is_there(job / ORIGIN):
            found.append(_exported(len(found), job, place))
        else:
            found += [_row(number, place, part) for number, part in enumerate(_parts(job), len(found))]
    return found


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir())
    except OSError:
        return []


def _is_job(folder: Path) -> bool:
    """Whether Harbor's files of a job are there: its configuration names no trial, but agents to try."""
    config = tried([], lambda: read_json(folder / "config.json"))
    return isinstance(config, dict) and "job_name" in config and isinstance(config.get("agents"), list)


@dataclass(frozen=True)
class _Part:
    """What one job says of one row."""

    key: Key
    trials: list[dict[str, Any]]
    expected: int | None
    over: bool
    problems: list[str]
    harbor: str | None


def _parts(job: Path) -> Iterator[_Part]:
    problems: list[str] = []
    trials: dict[Key, list[dict[str, Any]]] = {}
    begun = 0
    for folder in _folders(job):
        if not is_there(folder / "result.json"):
            begun += is_there(folder / "config.json")
        elif trial := tried(problems, lambda folder=folder: _trial(folder)):
            trials.setdefault(trial[0], []).append(trial[1])
    lock = _table(tried([], lambda: read_json(job / "lock.json")))
    whole = _table(tried(problems, lambda: read_json(job / "result.json")))
    over = bool(whole.get("finished_at"))
    if begun or not over:
        problems.append(f"Harbor job {job.name} is not over{f': {begun} trials begun and not over' if begun else ''}")
    planned = _planned(lock, whole, list(trials))
    for number, key in enumerate(dict.fromkeys([*planned, *trials])):
        own = _numbered(trials.get(key, []))
        version = _table(lock.get("harbor")).get("version")
        yield _Part(key, own, planned.get(key), over, problems if number == 0 else [], version)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _planned(lock: dict[str, Any], whole: dict[str, Any], seen: list[Key]) -> dict[Key, int]:
    """How many trials Harbor planned for each row: from the lock file, else from the total where there is one row."""
    listed = lock.get("trials")
    if isinstance(listed, list) and listed:
        return dict(Counter(_key_of(_table(one)) for one in listed))
    total = whole.get("n_total_trials")
    return {seen[0]: total} if len(seen) == 1 and isinstance(total, int) else {}


def _trial(folder: Path) -> tuple[Key, dict[str, Any]]:
    """Which row a trial belongs to, and its record."""
    name = f"{folder.name}/result.json"
    try:
        result = read_json(folder / "result.json")
        record = trial_record(folder, 0) | {"trial_dir": folder.name}
        key = _key_of(result["config"])
    except Unreadable as error:
        raise Unreadable(f"{folder.name}/{error}") from None
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise Unreadable(f"{name}: not in Harbor's form: {error}") from None
    return key, formed(TrialForm, record, name)


def _key_of(config: dict[str, Any]) -> Key:
    agent, task = _table(config.get("agent")), _table(config.get("task"))
    names = [task.get("source"), Path(str(task.get("path") or "")).name, task.get("name")]
    name = agent.get("name") or str(agent.get("import_path") or "agent").rpartition(":")[2]
    own = [f"agent.model={agent['model_name']}"] if agent.get("model_name") else []
    own += [f"agent.options.{key}={value}" for key, value in sorted(_table(agent.get("kwargs")).items())]
    return str(next(filter(None, names), "task")), str(name), tuple(own)


def _numbered(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials with the number of their attempt at their task, which Harbor does not keep: they began in that order."""
    attempts = Counter[str]()
    numbered = []
    for trial in sorted(trials, key=lambda trial: (trial["started_at"] or "", trial["name"])):
        attempts[trial["task"]] += 1
        numbered.append(trial | {"attempt": attempts[trial["task"]]})
    return numbered


def _exported(number: int, job: Path, place: str) -> Row:
    """The row of a cell's job that was exported, as it was."""
    try:
        origin = formed(OriginForm, read_json(job / ORIGIN), ORIGIN)
    except Unreadable as error:
        raise UsageError(f"{job}/{error}\n  export it again, or remove this file to read a plain Harbor job") from None
    trials = [trial | {"trial_dir": trial["name"]} for trial in origin["trials"]]
    result = {"trials": trials, "score": origin["score"], "provenance": origin["provenance"]}
    names = ("cell_id", "benchmark", "model", "agent", "backend", "overrides", "gpus", "benchmark_options")
    own = {name: origin[name] for name in names}
    return Row(**own, number=number, folder=place, state="finished", result=result, runner_error=None, problems=[])


def _row(number: int, folder: str, part: _Part) -> Row:
    benchmark, agent, overrides = part.key
    trials = part.trials
    own_score = score(trials, part.expected or 0, BenchmarkConfig(), NO_MODEL) | {"n_expected": part.expected}
    times = [[trial[key] for trial in trials if trial[key]] for key in ("started_at", "finished_at")]
    return Row(
        number=number,
        cell_id=cell_id({"benchmark": benchmark, "agent": agent, "overrides": overrides}),
        benchmark=benchmark,
        model=NO_MODEL,
        agent=agent,
        backend="harbor",
        overrides=list(overrides),
        folder=folder,
        state="finished" if part.over else "unknown",
        result={
            "trials": trials,
            "score": own_score,
            "started_at": min(times[0], default=None),
            "finished_at": max(times[1], default=None) if part.over else None,
            "provenance": _provenance(trials, list(overrides), part.harbor),
        },
        gpus=None,
        runner_error=None,
        problems=part.problems,
    )


def _provenance(trials: list[dict[str, Any]], overrides: list[str], harbor: str | None) -> dict[str, Any]:
    return {
        "versions": {"harbor": harbor},
        "task_checksums": {trial["task"]: trial["task_checksum"] for trial in trials},
        "overrides": overrides,
        "agent_version": next((trial["agent_version"] for trial in trials if trial["agent_version"]), None),
        "comparable": None,
        "not_comparable_because": [],
    }
