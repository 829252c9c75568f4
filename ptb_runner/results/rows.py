"""Read cells' folders as rows: what each cell is, how far it is, its trials and its score.

Nothing is believed because of its name: a file that is missing, damaged, of another form or of another cell becomes
a line among the row's problems, and never a score.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from ptb_runner.cell import SCHEMA_VERSION
from ptb_runner.config import BenchmarkConfig, MissingScore
from ptb_runner.explain import UsageError
from ptb_runner.outcome import SCORED, Outcome, score, trial_record, worst
from ptb_runner.sweepfile import read_sweep

ENDED = ("finished", "cancelled")  # states in which a runner has written its result.json

# A judge works on what a verifier has scored, so these may keep their reward; no other unscored outcome has one.
_JUDGED = (Outcome.flagged, Outcome.judge_missing)


@dataclass(frozen=True)
class Row:
    """One cell as it was found; `result` is its result.json, or as much of it as can be said without one.

    `folder` is relative to the sweep's; `gpus` is benchmark.gpus, None when not known.
    """

    number: int
    cell_id: str
    benchmark: str
    model: str
    agent: str
    backend: str
    overrides: list[str]
    folder: str
    state: str
    result: dict[str, Any]
    gpus: int | None
    runner_error: str | None
    problems: list[str]

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The records of the trials that are over."""
        return self.result["trials"]

    @property
    def score(self) -> dict[str, Any]:
        """raw, final, final_source, n_expected (None when not known) and n_scored."""
        return self.result["score"]

    @property
    def outcome(self) -> str | None:
        """The worst outcome of its trials; an interrupted cell is `cancelled`; None before the first trial."""
        return str(Outcome.cancelled) if self.state == "cancelled" else worst([one["outcome"] for one in self.trials])


def read_rows(folder: Path) -> list[Row]:
    """The cells of a sweep's folder as sweep.yaml lists them, or the one cell of a cell's folder as number 0.

    Raises UsageError when the folder is neither.
    """
    return [_row(folder, entry) for entry in _entries(folder)]


# --- Files, and the form that they must have ----------------------------------------------------------


# Any number that can be added up; neither NaN nor an infinity is.
_Number = Annotated[float, Field(gt=-1e15, lt=1e15)]
_Count = Annotated[int, Field(ge=0, lt=10**15)]


class _Entry(TypedDict):
    number: _Count
    id: str
    overrides: list[str]
    folder: str
    benchmark: str
    model: str
    agent: str
    backend: str


class _Attempts(TypedDict):
    expected: _Count


class _Status(TypedDict):
    state: str
    attempts: _Attempts
    error: NotRequired[str | None]


class _Durations(TypedDict):
    environment: _Number | None
    agent: _Number | None
    verifier: _Number | None
    total: _Number | None


class _Tokens(TypedDict):
    input: _Count | None
    cached: _Count | None
    output: _Count | None


class _Error(TypedDict):
    type: str
    message: str


class _Trial(TypedDict):
    name: str
    outcome: Literal[tuple(str(outcome) for outcome in Outcome)]  # type: ignore[valid-type]
    reward: _Number | None
    flags: list[str]
    durations_sec: _Durations
    tokens: _Tokens
    cost_usd: _Number | None
    error: _Error | None
    started_at: str | None
    finished_at: str | None


class _Score(TypedDict):
    raw: _Number | None
    final: _Number | None
    final_source: str | None
    n_expected: _Count
    n_scored: _Count


class _Provenance(TypedDict):
    comparable: bool
    not_comparable_because: list[str]


class _Result(TypedDict):
    schema_version: Literal[SCHEMA_VERSION]  # type: ignore[valid-type]
    cell_id: str
    benchmark: str
    model: str
    agent: str
    trials: list[_Trial]
    score: _Score
    started_at: str | None
    finished_at: str | None
    provenance: _Provenance


class _Benchmark(TypedDict):
    gpus: _Count
    missing_score: Literal["base_model", "nothing"]
    zero_shot: dict[str, _Number]


_FORMS = {form: TypeAdapter(form) for form in (list[_Entry], _Status, _Result, _Trial, _Benchmark)}


class _Unreadable(Exception):
    """A file that cannot be used; the text says which one and why, without the folder that it is in."""


def _formed(form: Any, value: Any, name: str) -> Any:
    """The value itself, with what else it holds, if it has the form."""
    try:
        _FORMS[form].validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _Unreadable(f"{name}: {where + ': ' if where else ''}{first['msg']}") from None
    return value


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _Unreadable(f"{path.name}: is missing") from None
    except OSError as error:
        raise _Unreadable(f"{path.name}: {error.strerror}") from None


def _is_there(path: Path) -> bool:
    """Whether something is at the path, as far as one can see: what may not be read is there."""
    try:
        return path.exists()
    except OSError:
        return True


def _json(path: Path) -> Any:
    try:
        return json.loads(_bytes(path), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"{path.name}: not valid JSON: {error}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _yaml(name: str, text: bytes) -> Any:
    try:
        return yaml.load(text, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _Unreadable(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None


def _benchmark(place: Path) -> dict[str, Any]:
    """`config.benchmark` of cell.yaml. It stands first in a long file: the rest is only parsed if it must be."""
    text = _bytes(place / "cell.yaml")
    first = text.partition(b"\n  model:\n")[0]
    try:
        return _formed(_Benchmark, _yaml("cell.yaml", first)["config"]["benchmark"], "cell.yaml")
    except (_Unreadable, KeyError, TypeError):
        content = _yaml("cell.yaml", text)
    try:
        return _formed(_Benchmark, content["config"]["benchmark"], "cell.yaml")
    except (KeyError, TypeError):
        raise _Unreadable("cell.yaml: has no config.benchmark") from None


# --- Cells --------------------------------------------------------------------------------------------


def _entries(folder: Path) -> list[dict[str, Any]]:
    if not _is_there(folder / "sweep.yaml"):
        return [_only_entry(folder)]
    try:
        content = read_sweep(folder)
        return _formed(list[_Entry], content.get("cells") if isinstance(content, dict) else None, "sweep.yaml: cells")
    except _Unreadable as error:
        raise UsageError(f"{folder}/{error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}/sweep.yaml: not readable: {error}") from None


def _only_entry(folder: Path) -> dict[str, Any]:
    if not _is_there(folder / "cell.yaml"):
        raise UsageError(f"{folder}: no sweep's and no cell's folder, it has neither sweep.yaml nor cell.yaml")
    try:
        content = _yaml("cell.yaml", _bytes(folder / "cell.yaml"))
        own = {"number": 0, "id": content["cell_id"], "overrides": content["overrides"], "folder": "."}
        names = {group: content["config"][group]["id"] for group in ("benchmark", "model", "agent")}
        entry = own | names | {"backend": content["config"]["backend"]["kind"]}
        return _formed(list[_Entry], [entry], "cell.yaml")[0]
    except _Unreadable as error:
        raise UsageError(f"{folder}/{error}") from None
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder}/cell.yaml: not in the form of a cell: {error!r}") from None


def _row(folder: Path, entry: dict[str, Any]) -> Row:
    place = folder / entry["folder"]
    missing = not _is_there(place)
    problems: list[str] = []
    status = _tried(problems, lambda: _formed(_Status, _json(place / "status.json"), "status.json"))
    benchmark = _tried(problems, lambda: _benchmark(place))
    result = _tried(problems, lambda: _result(place, entry, status, benchmark, problems))
    expected = status["attempts"]["expected"] if status else None
    no_score = {"raw": None, "final": None, "final_source": None, "n_expected": expected, "n_scored": 0}
    return Row(
        **{key: entry[key] for key in entry if key in Row.__dataclass_fields__},
        cell_id=entry["id"],
        state=status["state"] if status else "missing" if missing else "unknown",
        result=result or {"trials": [], "score": no_score, "provenance": _UNKNOWN},
        gpus=benchmark["gpus"] if benchmark else None,
        runner_error=status.get("error") if status else None,
        problems=["its folder is missing"] if missing else problems,
    )


def _tried[T](problems: list[str], read: Callable[[], T]) -> T | None:
    """What `read` returns; None where it cannot, with the reason among `problems`."""
    try:
        return read()
    except _Unreadable as error:
        problems.append(str(error))
        return None


_UNKNOWN = {"comparable": None, "not_comparable_because": []}


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
    saved = _sound(_formed(_Result, _json(path), path.name), entry) if _is_there(path) else None
    if saved is None or (status and status["state"] not in ENDED):
        return _rebuilt(place, entry, status, benchmark, saved, problems)
    if saved["cell_id"] != entry["id"]:
        problems.append(f"its result is of cell {saved['cell_id']}: it was widened to {entry['id']} and not run since")
    return saved


def _sound(result: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    for fault in _faults(result, entry):
        raise _Unreadable(f"result.json: {fault}")
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

    A record of an earlier result.json stands where it is of the same try, since it may have been judged.
    Without the benchmark's policy or the number of trials there is no score to speak of: None.
    """
    if status is None or benchmark is None:
        return None  # the reason is among the problems
    known = {trial["name"]: trial for trial in (saved or {}).get("trials", [])}
    folders = _trial_folders(place)
    found = [trial for folder in folders if (trial := _tried(problems, lambda folder=folder: _trial(folder)))]
    trials = [known[one["name"]] if _same_try(known.get(one["name"]), one) else one for one in found]
    if folders or status["state"] in (*ENDED, "running", "failed"):
        problems.append(_not_over(status, len(trials), len(folders) - len(trials)))
    policy = BenchmarkConfig(missing_score=MissingScore[benchmark["missing_score"]], zero_shot=benchmark["zero_shot"])
    return {
        "trials": trials,
        "score": score(trials, status["attempts"]["expected"], policy, entry["model"]),
        "started_at": min((trial["started_at"] for trial in trials if trial["started_at"]), default=None),
        "finished_at": None,
        "provenance": saved["provenance"] if saved else _UNKNOWN,
    }


def _trial_folders(place: Path) -> list[Path]:
    try:
        found = sorted((place / "job").iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _Unreadable(f"job: {error.strerror}") from None
    return [folder for folder in found if folder.name.rpartition("__")[2].isdecimal() and folder.is_dir()]


def _trial(folder: Path) -> dict[str, Any] | None:
    """The record of a trial; None while it is not over."""
    if not _is_there(folder / "result.json"):
        return None
    name = f"job/{folder.name}/result.json"
    try:
        _json(folder / "result.json")
        record = trial_record(folder, int(folder.name.rpartition("__")[2]))
    except _Unreadable as error:
        raise _Unreadable(f"job/{folder.name}/{error}") from None
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise _Unreadable(f"{name}: not in Harbor's form: {error}") from None
    return _formed(_Trial, record, name)


def _same_try(known: dict[str, Any] | None, found: dict[str, Any]) -> bool:
    return known is not None and known["finished_at"] == found["finished_at"]


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
