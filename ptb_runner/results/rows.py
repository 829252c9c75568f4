"""Read cells' folders as rows: what each cell is, how far it is, its trials and its score.

Nothing is believed because of its name: a file that is missing, damaged, of another form or of another cell becomes
a line among the row's problems, and never a score.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ptb_runner.config import BenchmarkConfig, MissingScore
from ptb_runner.explain import UsageError
from ptb_runner.outcome import SCORED, Outcome, score, trial_record
from ptb_runner.results import harbor_jobs, published
from ptb_runner.results.bundle import opened
from ptb_runner.results.row import (
    UNKNOWN,
    BenchmarkForm,
    EntryForm,
    ResultForm,
    Row,
    StatusForm,
    TrialForm,
    Unreadable,
    formed,
    is_there,
    read_bytes,
    read_json,
    tried,
)
from ptb_runner.sweepfile import read_sweep

ENDED = ("finished", "cancelled")  # states in which a runner has written its result.json

# A judge works on what a verifier has scored, so these may keep their reward; no other unscored outcome has one.
_JUDGED = (Outcome.flagged, Outcome.judge_missing)


def read_rows(folder: Path) -> list[Row]:
    """The cells of a folder, whoever made it: this is how everything that shows or compares results sees them.

    A sweep's cells as sweep.yaml lists them; the one cell of a cell's folder as number 0; of a Harbor job, or of a
    folder of Harbor jobs, a row for each agent on each data set; the runs of PostTrainBench's result folders; any of
    these also from a bundle. Raises UsageError when the folder is none of these. The folders of rows are relative to
    `bundle.opened(folder)`.
    """
    folder = opened(folder)
    own = is_there(folder / "sweep.yaml") or is_there(folder / "cell.yaml")
    if not own and (jobs := harbor_jobs.found(folder)):
        return harbor_jobs.rows(folder, jobs)
    if not own and (runs := published.found(folder)):
        return published.rows(folder, runs)
    return [_row(folder, entry) for entry in _entries(folder)]


# --- Cells --------------------------------------------------------------------------------------------


def _yaml(name: str, text: bytes) -> Any:
    try:
        return yaml.load(text, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None


def _benchmark(place: Path) -> dict[str, Any]:
    """`config.benchmark` of cell.yaml. It stands first in a long file: the rest is only parsed if it must be."""
    text = read_bytes(place / "cell.yaml")
    first = text.partition(b"\n  model:\n")[0]
    try:
        return formed(BenchmarkForm, _yaml("cell.yaml", first)["config"]["benchmark"], "cell.yaml")
    except (Unreadable, KeyError, TypeError):
        content = _yaml("cell.yaml", text)
    try:
        return formed(BenchmarkForm, content["config"]["benchmark"], "cell.yaml")
    except (KeyError, TypeError):
        raise Unreadable("cell.yaml: has no config.benchmark") from None


def _entries(folder: Path) -> list[dict[str, Any]]:
    if not is_there(folder / "sweep.yaml"):
        return [_only_entry(folder)]
    try:
        content = read_sweep(folder)
        return formed(list[EntryForm], content.get("cells") if isinstance(content, dict) else None, "sweep.yaml: cells")
    except Unreadable as error:
        raise UsageError(f"{folder}/{error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}/sweep.yaml: not readable: {error}") from None


def _only_entry(folder: Path) -> dict[str, Any]:
    if not is_there(folder / "cell.yaml"):
        raise UsageError(
            f"{folder}: no sweep's and no cell's folder, it has neither sweep.yaml nor cell.yaml;"
            " no Harbor job or PostTrainBench results either"
        )
    try:
        content = _yaml("cell.yaml", read_bytes(folder / "cell.yaml"))
        own = {"number": 0, "id": content["cell_id"], "overrides": content["overrides"], "folder": "."}
        names = {group: content["config"][group]["id"] for group in ("benchmark", "model", "agent")}
        entry = own | names | {"backend": content["config"]["backend"]["kind"]}
        return formed(list[EntryForm], [entry], "cell.yaml")[0]
    except Unreadable as error:
        raise UsageError(f"{folder}/{error}") from None
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder}/cell.yaml: not in the form of a cell: {error!r}") from None


def _row(folder: Path, entry: dict[str, Any]) -> Row:
    place = folder / entry["folder"]
    missing = not is_there(place)
    problems: list[str] = []
    status = tried(problems, lambda: formed(StatusForm, read_json(place / "status.json"), "status.json"))
    benchmark = tried(problems, lambda: _benchmark(place))
    result = tried(problems, lambda: _result(place, entry, status, benchmark, problems))
    expected = status["attempts"]["expected"] if status else None
    no_score = {"raw": None, "final": None, "final_source": None, "n_expected": expected, "n_scored": 0}
    return Row(
        **{key: entry[key] for key in entry if key in Row.__dataclass_fields__},
        cell_id=entry["id"],
        state=status["state"] if status else "missing" if missing else "unknown",
        result=result or {"trials": [], "score": no_score, "provenance": UNKNOWN},
        gpus=benchmark["gpus"] if benchmark else None,
        runner_error=status.get("error") if status else None,
        problems=["its folder is missing"] if missing else problems,
        benchmark_options=benchmark or {},
    )


def _result(
    place: Path,
    entry: dict[str, Any],
    status: dict[str, Any] | None,
    benchmark: dict[str, Any] | None,
    problems: list[str],
) -> dict[str, Any] | None:
    """The cell's result: result.json where a runner is done with it, else what its trials' folders say.

    A result.json that is there and not sound is never replaced that way: it may hold verdicts that are nowhere else.
    """
    path = place / "result.json"
    saved = _sound(formed(ResultForm, read_json(path), path.name), entry) if is_there(path) else None
    if saved is None or (status and status["state"] not in ENDED):
        return _rebuilt(place, entry, status, benchmark, saved, problems)
    if saved["cell_id"] != entry["id"]:
        problems.append(f"its result is of cell {saved['cell_id']}: it was widened to {entry['id']} and not run since")
    return saved


def _sound(result: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    for fault in _faults(result, entry):
        raise Unreadable(f"result.json: {fault}")
    return result


def _faults(result: dict[str, Any], entry: dict[str, Any]) -> Iterator[str]:
    """Why a result cannot be believed: it is another cell's, or contradicts itself."""
    for key in ("benchmark", "model", "agent"):
        if result[key] != entry[key]:
            yield f"is of {key} {result[key]}, the cell's is {entry[key]}"
    for trial in result["trials"]:
        scored, has_reward = trial["outcome"] in SCORED, trial["reward"] is not None
        if scored != has_reward and trial["outcome"] not in _JUDGED:
            yield f"trial {trial['name']} is {trial['outcome']} and has the reward {trial['reward']}"
    rewards = [trial["reward"] for trial in result["trials"] if trial["outcome"] in SCORED]
    raw = result["score"]["raw"]
    agrees = (
        math.isclose(raw, statistics.fmean(rewards)) if rewards and raw is not None else not rewards and raw is None
    )
    if result["score"]["n_scored"] != len(rewards) or not agrees:
        yield "its score does not agree with its trials"


# --- Cells whose runner has not finished --------------------------------------------------------------


def _rebuilt(
    place: Path,
    entry: dict[str, Any],
    status: dict[str, Any] | None,
    benchmark: dict[str, Any] | None,
    saved: dict[str, Any] | None,
    problems: list[str],
) -> dict[str, Any] | None:
    """The result of a cell whose runner is at work or was killed, from the trials that are over.

    A record of an earlier result.json stands where it is of the same try and holds verdicts that are nowhere else.
    Without the benchmark's policy or the number of trials there is no score to speak of: None.
    """
    if status is None or benchmark is None:
        return None  # the reason is among the problems
    known = {trial["name"]: trial for trial in (saved or {}).get("trials", [])}
    folders = _trial_folders(place)
    found = [trial for folder in folders if (trial := tried(problems, lambda folder=folder: _trial(folder)))]
    trials = [known[one["name"]] if _same_try(known.get(one["name"]), one) else one for one in found]
    if folders or status["state"] in (*ENDED, "running", "failed"):
        problems.append(_not_over(status, len(trials), len(folders) - len(trials)))
    policy = BenchmarkConfig(missing_score=MissingScore[benchmark["missing_score"]], zero_shot=benchmark["zero_shot"])
    return {
        "trials": trials,
        "score": score(trials, status["attempts"]["expected"], policy, entry["model"]),
        "started_at": min((trial["started_at"] for trial in trials if trial["started_at"]), default=None),
        "finished_at": None,
        "provenance": saved["provenance"] if saved else UNKNOWN,
    }


def _trial_folders(place: Path) -> list[Path]:
    try:
        found = sorted((place / "job").iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(f"job: {error.strerror}") from None
    return [folder for folder in found if folder.name.rpartition("__")[2].isdecimal() and folder.is_dir()]


def _trial(folder: Path) -> dict[str, Any] | None:
    """The record of a trial; None while it is not over."""
    if not is_there(folder / "result.json"):
        return None
    name = f"job/{folder.name}/result.json"
    try:
        read_json(folder / "result.json")
        record = trial_record(folder, int(folder.name.rpartition("__")[2]))
    except Unreadable as error:
        raise Unreadable(f"job/{folder.name}/{error}") from None
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise Unreadable(f"{name}: not in Harbor's form: {error}") from None
    return formed(TrialForm, record, name)


def _same_try(known: dict[str, Any] | None, found: dict[str, Any]) -> bool:
    return known is not None and known["finished_at"] == found["finished_at"] and not found["judgements"]


def _not_over(status: dict[str, Any], over: int, begun: int) -> str:
    """Why the cell has no result of its own, and how much there is instead."""
    words = {
        "running": "still running, or its runner was killed",
        "failed": f"its runner failed: {' '.join((status.get('error') or 'it did not say why').split())}",
        "finished": "is finished and has no result.json",
        "cancelled": "was cancelled and has no result.json",
    }
    also = f", {begun} begun and not over" if begun else ""
    why = words.get(status["state"], f"is {status['state']}")
    return f"{why}; trials over: {over} of {status['attempts']['expected']}{also}"
