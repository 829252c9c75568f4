"""One cell as it was found, and the form that the files it is read from must have.

Nothing is believed because of its name: a file that is missing, damaged, of another form or of another cell becomes
a line among the row's problems, and never a score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field, TypeAdapter, ValidationError

from ptb_runner.cell import SCHEMA_VERSION
from ptb_runner.outcome import Outcome, worst

UNKNOWN = {"comparable": None, "not_comparable_because": []}  # the provenance of what does not say where it is from


@dataclass(frozen=True)
class Row:
    """One cell as it was found; `result` is its result.json, or as much of it as can be said without one.

    `folder` is relative to the sweep's; `gpus` is benchmark.gpus, None when not known; `benchmark_options` is
    config.benchmark of its cell.yaml, {} when not known.
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
    benchmark_options: dict[str, Any] = field(default_factory=dict)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The records of the trials that are over."""
        return self.result["trials"]

    @property
    def score(self) -> dict[str, Any]:
        """raw, final, final_source, n_expected (None when not known) and n_scored."""
        return self.result["score"]

    @property
    def server_gpu_hours(self) -> float | None:
        """The cell's share of the GPU-hours of the server of its model; None: there was none of ours."""
        return self.result.get("server_gpu_hours")

    @property
    def outcome(self) -> str | None:
        """The worst outcome of its trials; an interrupted cell is `cancelled`; None before the first trial."""
        return str(Outcome.cancelled) if self.state == "cancelled" else worst([one["outcome"] for one in self.trials])


# --- Files, and the form that they must have ----------------------------------------------------------


# Any number that can be added up; neither NaN nor an infinity is.
Number = Annotated[float, Field(gt=-1e15, lt=1e15)]
Count = Annotated[int, Field(ge=0, lt=10**15)]


class EntryForm(TypedDict):
    number: Count
    id: str
    overrides: list[str]
    folder: str
    benchmark: str
    model: str
    agent: str
    backend: str


class AttemptsForm(TypedDict):
    expected: Count


class StatusForm(TypedDict):
    state: str
    attempts: AttemptsForm
    error: NotRequired[str | None]


class DurationsForm(TypedDict):
    environment: Number | None
    agent: Number | None
    verifier: Number | None
    total: Number | None


class TokensForm(TypedDict):
    input: Count | None
    cached: Count | None
    output: Count | None


class ErrorForm(TypedDict):
    type: str
    message: str


class TrialForm(TypedDict):
    name: str
    outcome: Literal[tuple(str(outcome) for outcome in Outcome)]  # type: ignore[valid-type]
    reward: Number | None
    flags: list[str]
    durations_sec: DurationsForm
    tokens: TokensForm
    cost_usd: Number | None
    error: ErrorForm | None
    started_at: str | None
    finished_at: str | None


class ScoreForm(TypedDict):
    raw: Number | None
    final: Number | None
    final_source: str | None
    n_expected: Count
    n_scored: Count


class ProvenanceForm(TypedDict):
    comparable: bool
    not_comparable_because: list[str]


class AnyProvenanceForm(TypedDict):
    comparable: bool | None
    not_comparable_because: list[str]


class ResultForm(TypedDict):
    schema_version: Literal[SCHEMA_VERSION]  # type: ignore[valid-type]
    cell_id: str
    benchmark: str
    model: str
    agent: str
    trials: list[TrialForm]
    score: ScoreForm
    started_at: str | None
    finished_at: str | None
    server_gpu_hours: NotRequired[Number | None]
    provenance: ProvenanceForm


class BenchmarkForm(TypedDict):
    gpus: Count
    missing_score: Literal["base_model", "nothing"]
    zero_shot: dict[str, Number]
    weight: NotRequired[Number | None]
    models: NotRequired[list[str]]
    pass_reward: NotRequired[Number]


class PlannedScoreForm(TypedDict):
    raw: Number | None
    final: Number | None
    final_source: str | None
    n_expected: Count | None
    n_scored: Count


class OriginForm(TypedDict):
    """A cell as an export of its Harbor job has it."""

    cell_id: str
    benchmark: str
    model: str
    agent: str
    backend: str
    overrides: list[str]
    gpus: Count | None
    benchmark_options: dict[str, Any]
    trials: list[TrialForm]
    score: PlannedScoreForm
    provenance: AnyProvenanceForm


_USED = (list[EntryForm], StatusForm, ResultForm, TrialForm, BenchmarkForm, OriginForm)
_FORMS = {form: TypeAdapter(form) for form in _USED}


class Unreadable(Exception):
    """A file that cannot be used; the text says which one and why, without the folder that it is in."""


def formed(form: Any, value: Any, name: str) -> Any:
    """The value itself, with what else it holds, if it has the form."""
    try:
        _FORMS[form].validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Unreadable(f"{name}: {where + ': ' if where else ''}{first['msg']}") from None
    return value


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Unreadable(f"{path.name}: is missing") from None
    except OSError as error:
        raise Unreadable(f"{path.name}: {error.strerror}") from None


def is_there(path: Path) -> bool:
    """Whether something is at the path, as far as one can see: what may not be read is there."""
    try:
        return path.exists()
    except OSError:
        return True


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path.name}: not valid JSON: {error}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def tried[T](problems: list[str], read: Callable[[], T]) -> T | None:
    """What `read` returns; None where it cannot, with the reason among `problems`."""
    try:
        return read()
    except Unreadable as error:
        problems.append(str(error))
        return None
