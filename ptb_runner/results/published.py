"""Read PostTrainBench's result folders as rows: those that `ptb export` wrote, and the benchmark's own.

    RESULTS/<method>/<benchmark>_<org>_<model>_<run id>/

A run of ours is read back as the trial that it was. Of a run of theirs the score, the verdicts and the agent's time
are known, and no more: the method is the agent, and the newest run of each benchmark and model counts, as for their
scripts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from ptb_runner.cell import cell_id
from ptb_runner.config import BenchmarkConfig, MissingScore
from ptb_runner.explain import UsageError
from ptb_runner.outcome import Outcome, score
from ptb_runner.paths import CONF
from ptb_runner.results.row import Row, TrialForm, Unreadable, formed, is_there, read_json

RUN = "ptb_run.json"  # in a run of ours: the cell and the trial that it was

_NAME = re.compile(r"(?P<benchmark>[^_]+)_(?P<org>[^_]+)_(?P<model>[^_]+)_(?P<run>\d+)")
# Judges that change a score, and the fields that do.
_FLAGS = {"gpt5_4": ("contamination", "disallowed_model"), "api": ("disallowed_api_usage",)}
_NO_TIMES = {"environment": None, "agent": None, "verifier": None, "total": None}


def found(folder: Path) -> list[Path]:
    """The folders of runs in a results folder, or in that of one method; empty when it is neither."""
    runs = [path for pattern in ("*", "*/*") for path in folder.glob(pattern) if _is_run(path)]
    return sorted(runs, key=lambda path: path.relative_to(folder).parts)


def _is_run(path: Path) -> bool:
    marks = (RUN, "metrics.json", "time_taken.txt")
    return bool(_NAME.fullmatch(path.name)) and path.is_dir() and any(is_there(path / name) for name in marks)


def rows(folder: Path, runs: list[Path]) -> list[Row]:
    """The rows of these runs, numbered from 0; a run that cannot be read is told among its row's problems."""
    ours: dict[tuple[str, ...], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    theirs: dict[tuple[str, str, str], Path] = {}
    damaged: list[str] = []
    for run in runs:
        place = run.relative_to(folder).as_posix()
        if not is_there(run / RUN):
            name = _NAME.fullmatch(run.name)
            assert name  # as found() chose them
            key = (run.parent.name, name["benchmark"], f"{name['org']}/{name['model']}")
            theirs[key] = max(theirs.get(key, run), run, key=lambda path: int(path.name.rpartition("_")[2]))
            continue
        try:
            marker = _marker(run)
            identity = (marker["cell"]["cell_id"], str(marker["cell"]["number"]), str(marker.get("job_id")))
            ours.setdefault(identity, []).append((marker, marker["trial"] | {"trial_dir": place}))
        except Unreadable as error:
            damaged.append(f"{place}/{error}")
    read = [_ours(number, parts) for number, parts in enumerate(ours.values())]
    read += [_theirs(len(read) + number, folder, key, run) for number, (key, run) in enumerate(theirs.items())]
    if not read:
        raise UsageError("\n  ".join([f"{folder}: none of its runs can be read", *damaged[:3]]))
    read[0].problems.extend(damaged)
    return read


# --- Ours -------------------------------------------------------------------------------------------


def _marker(run: Path) -> dict[str, Any]:
    content = read_json(run / RUN)
    try:
        formed(TrialForm, content["trial"], f"{RUN}: trial")
        names = ("cell_id", "number", "benchmark", "model", "agent", "backend", "overrides", "benchmark_options")
        missing = [name for name in names if name not in content["cell"]]
        if missing or not isinstance(content["n_expected"], int):
            raise Unreadable(f"{RUN}: lacks {', '.join(missing) or 'n_expected'}")
    except (KeyError, TypeError):
        raise Unreadable(f"{RUN}: not in the form of an export") from None
    return content


def _ours(number: int, parts: list[tuple[dict[str, Any], dict[str, Any]]]) -> Row:
    marker = parts[-1][0]
    trials = sorted((trial for _, trial in parts), key=lambda trial: trial["attempt"])
    first = trials[0]["trial_dir"]
    trials = [trial | {"trial_dir": os.path.relpath(trial["trial_dir"], first)} for trial in trials]
    own = marker["cell"] | {"number": number}
    names = ("number", "cell_id", "benchmark", "model", "agent", "backend", "overrides", "gpus", "benchmark_options")
    expected = max(part["n_expected"] for part, _ in parts)
    return _row({name: own[name] for name in names}, first, trials, expected, marker["provenance"])


def _row(
    own: dict[str, Any], place: str, trials: list[dict[str, Any]], expected: int, provenance: dict[str, Any]
) -> Row:
    options = own["benchmark_options"]
    policy = BenchmarkConfig(
        missing_score=MissingScore[options.get("missing_score", "base_model")], zero_shot=options.get("zero_shot", {})
    )
    result = {"trials": trials, "score": score(trials, expected, policy, own["model"]), "provenance": provenance}
    return Row(**own, folder=place, state="finished", result=result, runner_error=None, problems=[])


# --- Theirs -----------------------------------------------------------------------------------------


def _theirs(number: int, folder: Path, key: tuple[str, str, str], run: Path) -> Row:
    method, benchmark, hub_id = key
    options = _benchmark_options(benchmark)
    own = {
        "number": number,
        "cell_id": cell_id({"method": method, "benchmark": benchmark, "model": hub_id}),
        "benchmark": benchmark,
        "model": _model_ids().get(hub_id, hub_id),
        "agent": method,
        "backend": "posttrainbench",
        "overrides": [],
        "gpus": None,
        "benchmark_options": options | {"missing_score": "base_model"},
    }
    problems: list[str] = []
    place = run.relative_to(folder).as_posix()
    trial = _trial(run, place, problems)
    row = _row(own, place, [trial], 1, {"comparable": None, "not_comparable_because": [], "run": run.name})
    row.problems.extend(problems)
    return row


def _trial(run: Path, place: str, problems: list[str]) -> dict[str, Any]:
    accuracy, judgements = None, {}
    try:
        metrics = read_json(run / "metrics.json") if is_there(run / "metrics.json") else {}
        accuracy = metrics.get("accuracy") if isinstance(metrics, dict) else None
        judgements = {judge: verdict for judge in _FLAGS if (verdict := _verdict(run, judge)) is not None}
    except Unreadable as error:
        problems.append(f"{place}/{error}")
    flags = [
        f"{judge}.{name}" for judge, said in judgements.items() for name in _FLAGS[judge] if said.get(name) is True
    ]
    scored = isinstance(accuracy, int | float) and not isinstance(accuracy, bool)
    outcome = Outcome.eval_failed if not scored else Outcome.flagged if flags else Outcome.scored
    error = None if scored else {"type": "eval_failed", "message": "no accuracy in metrics.json", "phase": "verifier"}
    return {
        "name": run.name,
        "task": run.name.split("_")[0],
        "attempt": 1,
        "outcome": str(outcome),
        "reward": float(accuracy) if outcome is Outcome.scored and accuracy is not None else None,
        "metrics": {"accuracy": accuracy} if scored else None,
        "judgements": judgements,
        "flags": flags,
        "durations_sec": _NO_TIMES | {"agent": _seconds(run / "time_taken.txt")},
        "tokens": {"input": None, "cached": None, "output": None},
        "cost_usd": None,
        "error": error,
        "agent_version": None,
        "task_checksum": None,
        "started_at": None,
        "finished_at": None,
        "trial_dir": ".",
    }


def _verdict(run: Path, judge: str) -> dict[str, Any] | None:
    """A judge's verdict; a rerun's wins."""
    for name in (f"judgement_{judge}_rerun.json", f"judgement_{judge}.json"):
        if is_there(run / name):
            content = read_json(run / name)
            return content if isinstance(content, dict) else None
    return None


def _seconds(path: Path) -> float | None:
    try:
        parts = [int(part) for part in path.read_text().strip().split(":")]
    except (OSError, ValueError):
        return None
    return float(parts[0] * 3600 + parts[1] * 60 + parts[2]) if len(parts) == 3 else None


def _benchmark_options(benchmark: str) -> dict[str, Any]:
    """What conf/ says of a benchmark: its weight, its base models' scores."""
    path = CONF / "benchmark" / f"{benchmark}.yaml"
    content = yaml.safe_load(path.read_text()) if path.is_file() else {}
    return {name: content[name] for name in ("weight", "zero_shot") if name in content}


def _model_ids() -> dict[str, str]:
    """Our id of each model on the hub."""
    found = (yaml.safe_load(path.read_text()) for path in (CONF / "model").glob("*.yaml"))
    return {one["hub_id"]: one["id"] for one in found if one.get("hub_id")}
