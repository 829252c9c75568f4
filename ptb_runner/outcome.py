"""What became of a trial, and what a cell's score is.

Everything here is a function of files on disk, so that any saved cell can be read again. The rule
that all of it serves: **a reward is a number only when the verifier really produced it for work that
the agent really did; an error is never turned into a score.**
"""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from ptb_runner import clierrors
from ptb_runner import reward as rewards
from ptb_runner.cell import read_json
from ptb_runner.config import BenchmarkConfig, MissingScore
from ptb_runner.judge import judgements


class Outcome(StrEnum):
    """What became of a trial: a closed list, from best to worst for the person who pays."""

    scored = "scored"
    agent_timeout = "agent_timeout"  # scored, though the agent's time ran out
    flagged = "flagged"
    no_model = "no_model"
    invalid_model = "invalid_model"
    eval_failed = "eval_failed"
    judge_missing = "judge_missing"
    infra_error = "infra_error"
    cancelled = "cancelled"


SCORED = frozenset({Outcome.scored, Outcome.agent_timeout})
# The agent had its chance and left nothing that counts; a policy may put another score in its place.
UNSCORABLE = frozenset({Outcome.flagged, Outcome.no_model, Outcome.invalid_model, Outcome.eval_failed})
# The agent was at work: judges look at what it did.
JUDGED = SCORED | (UNSCORABLE - {Outcome.flagged})

# Harbor's names for an agent phase that ended in an error after which its work still counts.
_WORK_COUNTS = frozenset(
    {
        "AgentTimeoutError",
        "ContextWindowExceededError",
        "OutputTokenExceededError",
        "ContextLengthExceededError",
        "OutputLengthExceededError",
        "AgentSafetyRefusalError",
        "ContentPolicyViolationError",
    }
)
_VERIFIER_FAILED = frozenset(
    {"VerifierTimeoutError", "RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError"}
)

ROUNDS_FILE = "rounds.json"  # in a trial's folder: the rounds of an agent that may be prompted again
LEFT_PROCESSES = "left_processes.json"  # in a trial's folder: command lines of what the agent had left running

_CHOSEN = "ptb_reward"  # in a trial's result, while it is read
_SHOWN_BYTES, _SHOWN_LINE = 4096, 300  # of what a verifier printed, at most


def trial_record(trial_dir: Path, attempt: int) -> dict[str, Any]:
    """The record of one trial for result.json, from its folder; a folder without a result is an infra_error."""
    return _judged(_verified_record(trial_dir, attempt), trial_dir)


def _verified_record(trial_dir: Path, attempt: int) -> dict[str, Any]:
    """The record as the verifier alone would have it."""
    result = read_json(trial_dir / "result.json")
    if not isinstance(result, dict):
        error = _error("NoResult", "the trial left no result", None)
        return _record(trial_dir, attempt, {}, Outcome.infra_error, None, error, [], None)
    if raised := result.get("exception_info"):
        in_setup = bool(result.get("agent_setup")) and not result.get("agent_execution")
        result |= {"exception_info": clierrors.explained(raised, trial_dir, in_setup=in_setup)}
    result |= {_CHOSEN: rewards.chosen(trial_dir.parent)}
    if _seems_well(result) and (silence := clierrors.silence(result, trial_dir)):
        result |= {"exception_info": silence}
    verdict = _verdict(trial_dir / "verifier" / "verdict.json")
    outcome, reason, flags = classify(result, verdict)
    flags += [*_timed_out_at(result, trial_dir), *_left_processes(trial_dir), *_rounds(trial_dir)]
    reward = _reward(result) if outcome in SCORED else None
    error = _error_of(result, outcome, reason)
    if error and error["type"] == "RewardFileNotFoundError":  # Harbor's words for it are two long paths
        error["message"] = f"the verifier left neither reward.txt nor reward.json{_last_words(trial_dir)}"
    metrics = verdict.get("metrics") or (_rewards(result) if outcome in (*SCORED, Outcome.eval_failed) else None)
    return _record(trial_dir, attempt, result, outcome, reward, error, flags, _finite(metrics or None))


def _seems_well(result: dict[str, Any]) -> bool:
    """Whether nothing says that the agent could not work, and nothing that it did."""
    raised = (result.get("exception_info") or {}).get("exception_type")
    return raised in {None, "AgentTimeoutError"} | _VERIFIER_FAILED and not (_reward(result) or 0.0) > 0


def _judged(record: dict[str, Any], trial_dir: Path) -> dict[str, Any]:
    """The record with what judges and reviewers say: a trial that they object to, or have not judged, has no reward."""
    if record["outcome"] not in JUDGED:
        return record
    said = judgements.standing(trial_dir)
    if not said.judgements:
        return record
    record |= {"judgements": said.judgements, "review": said.review, "flags": [*record["flags"], *said.flags]}
    record["judge_cost_usd"] = judgements.cost(trial_dir)
    if record["outcome"] in SCORED and (said.objections or said.missing):
        outcome = Outcome.flagged if said.objections else Outcome.judge_missing
        reasons = said.objections or said.missing
        record |= {"outcome": str(outcome), "reward": None, "error": _error(str(outcome), "; ".join(reasons), "judge")}
    return record


def _last_words(trial_dir: Path) -> str:
    """What the verifier printed last."""
    path = trial_dir / "verifier" / "test-stdout.txt"
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _SHOWN_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; it printed last: {last[-_SHOWN_LINE:]}" if last else ""


def _timed_out_at(result: dict[str, Any], trial_dir: Path) -> list[str]:
    """The flag of an agent whose time was up while its LLM was failing it."""
    timed_out = (result.get("exception_info") or {}).get("exception_type") == "AgentTimeoutError"
    error = clierrors.at_the_end(trial_dir) if timed_out else None
    return [f"agent_error:{error}"] if error else []


def _left_processes(trial_dir: Path) -> list[str]:
    """The flag of an agent that was done while programs of its own still ran; they were ended."""
    found = read_json(trial_dir / LEFT_PROCESSES)
    return [f"left_processes:{len(found)}"] if isinstance(found, list) and found else []


def _rounds(trial_dir: Path) -> list[str]:
    """The flags of an agent that was prompted again, and of one that could not be."""
    found = read_json(trial_dir / ROUNDS_FILE)
    rounds = found if isinstance(found, list) else []
    failed = [one["error"] for one in rounds[1:] if one["error"]]
    return [
        *([f"reprompted:{len(rounds) - 1}"] if len(rounds) > 1 else []),
        *(f"reprompt_error:{error}" for error in failed),
    ]


def _verdict(path: Path) -> dict[str, Any]:
    """Our verifier's verdict; {} when there is none. A task of another's making may leave anything by that name."""
    found = read_json(path)
    kinds = {"outcome": str, "reason": str, "metrics": dict}
    values = {name: found.get(name) for name in kinds} if isinstance(found, dict) else {}
    return {name: value for name, value in values.items() if isinstance(value, kinds[name])}


def _finite(value: Any) -> Any:
    """The same data with null for every number that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def classify(result: dict[str, Any], verdict: dict[str, Any]) -> tuple[Outcome, str | None, list[str]]:
    """Outcome, reason and flags of a Harbor trial result and our verifier's verdict ({} for other tasks)."""
    raised = (result.get("exception_info") or {}).get("exception_type")
    if raised == "CancelledError":
        return Outcome.cancelled, "interrupted", []
    late = _after_verification(result)
    if raised and not late and raised not in _WORK_COUNTS | _VERIFIER_FAILED and not _worked_anyway(raised, result):
        return Outcome.infra_error, None, []
    flags = [f"{'cleanup' if late else 'agent'}_error:{raised}"] if raised and raised not in _VERIFIER_FAILED else []
    said = verdict.get("outcome")
    if said in set(UNSCORABLE) | {Outcome.infra_error}:
        return Outcome(said), verdict.get("reason"), flags
    if raised in _VERIFIER_FAILED:
        return Outcome.eval_failed, verdict.get("reason"), flags  # without one, Harbor's own words say more
    if _reward(result) is None:
        return Outcome.eval_failed, verdict.get("reason") or _why_no_reward(result), flags
    if raised == "AgentTimeoutError":
        return Outcome.agent_timeout, None, []  # which says it already
    return Outcome.scored, None, flags


def _verified(result: dict[str, Any]) -> bool:
    """Whether the verifier ran, or at least began to."""
    return bool(result.get("verifier") or result.get("verifier_result"))


def _why_no_reward(result: dict[str, Any]) -> str:
    left = _rewards(result)
    if not _verified(result):
        return "the verifier did not run"
    if not left:
        return "the verifier left no reward"
    if name := _counts(result):
        return f"{name} is no finite number: {left[name]!r}"
    names = [*map(str, list(left)[:5]), *(["..."] if len(left) > 5 else [])]
    called = f"{len(left)} rewards ({', '.join(names)}), none called {result.get(_CHOSEN) or rewards.USUAL}"
    return f"{called}; ptb collect DIR --reward NAME says which counts"


def _after_verification(result: dict[str, Any]) -> bool:
    """Whether the error came when the verifier was done (a sandbox that would not stop): the reward stands."""
    try:
        raised = datetime.fromisoformat(result["exception_info"]["occurred_at"])
        return raised >= datetime.fromisoformat(result["verifier"]["finished_at"]) and _reward(result) is not None
    except (KeyError, TypeError, ValueError):
        return False


def _worked_anyway(raised: str, result: dict[str, Any]) -> bool:
    """Whether an agent that ended with an error had done work that the verifier could judge, and began to.

    Harbor verifies after a CLI that ended non-zero, also when it never reached its LLM: the 0 that comes
    out then says nothing about the agent. A completion that was paid for, or a reward that was earned, does.
    """
    if raised != "NonZeroAgentExitCodeError" or not _verified(result):
        return False
    output_tokens = (result.get("agent_result") or {}).get("n_output_tokens") or 0
    return output_tokens > 0 or (_reward(result) or 0.0) > 0


def _rewards(result: dict[str, Any]) -> dict[str, Any]:
    return (result.get("verifier_result") or {}).get("rewards") or {}


def _counts(result: dict[str, Any]) -> str | None:
    """Which of the verifier's rewards counts: the chosen one, else `reward`, or the only one there is."""
    left = _rewards(result)
    name = result.get(_CHOSEN) or rewards.USUAL
    return name if name in left else next(iter(left)) if len(left) == 1 else None


def _reward(result: dict[str, Any]) -> float | None:
    """The verifier's number; None unless finite."""
    name = _counts(result)
    value = _rewards(result)[name] if name else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _error_of(result: dict[str, Any], outcome: Outcome, reason: str | None) -> dict[str, Any] | None:
    if outcome is Outcome.scored:
        return None
    raised = result.get("exception_info") or {}
    own_words = reason is not None and outcome not in (Outcome.agent_timeout, Outcome.cancelled)
    kind = str(outcome) if own_words else raised.get("exception_type") or str(outcome)
    message = reason if own_words else raised.get("exception_message") or reason or ""
    return _error(kind, message or "", _phase(result, None if own_words else raised.get("occurred_at")))


def _error(kind: str, message: str, phase: str | None) -> dict[str, Any]:
    return {"type": kind, "message": message[-2000:], "phase": phase}


_PHASES = (
    ("verifier", "verifier"),
    ("agent_execution", "agent"),
    ("agent_setup", "agent_setup"),
    ("environment_setup", "environment"),
)


def _phase(result: dict[str, Any], when: str | None) -> str | None:
    """The last phase that was begun, until `when` if it is known: Harbor also verifies after an agent's error."""
    begun = [((result.get(key) or {}).get("started_at"), name) for key, name in _PHASES]
    return next((name for start, name in begun if start and not _is_after(start, when)), None)


def _is_after(time: str, limit: str | None) -> bool:
    try:
        return datetime.fromisoformat(time) > datetime.fromisoformat(limit or "")
    except (TypeError, ValueError):
        return False


def _record(
    trial_dir: Path,
    attempt: int,
    result: dict[str, Any],
    outcome: Outcome,
    reward: float | None,
    error: dict[str, Any] | None,
    flags: list[str],
    metrics: dict[str, Any] | None,
) -> dict[str, Any]:
    agent = result.get("agent_result") or {}
    return {
        "name": trial_dir.name,
        "task": result.get("task_name"),
        "attempt": attempt,
        "outcome": str(outcome),
        "reward": reward,
        "metrics": metrics,
        "judgements": {},
        "review": None,
        "flags": flags,
        "durations_sec": {
            "environment": _seconds(result.get("environment_setup")),
            "agent": _seconds(result.get("agent_execution")),
            "verifier": _seconds(result.get("verifier")),
            "total": _seconds(result),
        },
        "tokens": {
            "input": agent.get("n_input_tokens"),
            "cached": agent.get("n_cache_tokens"),
            "output": agent.get("n_output_tokens"),
        },
        "cost_usd": agent.get("cost_usd"),
        "judge_cost_usd": None,
        "error": error,
        "agent_version": (result.get("agent_info") or {}).get("version"),
        "task_checksum": result.get("task_checksum"),
        "started_at": result.get("started_at"),
        "finished_at": result.get("finished_at"),
        "trial_dir": f"{trial_dir.parent.name}/{trial_dir.name}",
    }


def _seconds(timing: dict[str, Any] | None) -> float | None:
    try:
        begin, end = (datetime.fromisoformat((timing or {})[key]) for key in ("started_at", "finished_at"))
    except (KeyError, TypeError, ValueError):
        return None
    return round((end - begin).total_seconds(), 3)


def score(trials: list[dict[str, Any]], n_expected: int, benchmark: BenchmarkConfig, model_id: str) -> dict[str, Any]:
    """The score of a cell.

    `raw` is the mean reward over scored trials. `final` applies the benchmark's policy: with
    `missing_score: base_model` each trial in which the agent left nothing that counts is given the base
    model's zero-shot score; infrastructure errors and cancelled trials are in neither, they lower the
    coverage `n_scored / n_expected`. `final_source` is verifier, base_model_zero_shot or mixed, and null
    with a null score. While `awaits_review` trials wait for a person's word, there is no final score.
    """
    rewards = [trial["reward"] for trial in trials if trial["outcome"] in SCORED]
    raw = sum(rewards) / len(rewards) if rewards else None
    final, source = raw, "verifier" if rewards else None
    replaced = sum(trial["outcome"] in UNSCORABLE for trial in trials)
    if benchmark.missing_score is MissingScore.base_model and replaced:
        base = benchmark.zero_shot.get(model_id)
        if base is None:
            final, source = None, None
        else:
            final = (sum(rewards) + base * replaced) / (len(rewards) + replaced)
            source = "mixed" if rewards else "base_model_zero_shot"
    awaits = sum((trial.get("review") or {}).get("state") == "awaiting" for trial in trials)
    if awaits:
        final, source = None, None
    return {
        "raw": raw,
        "final": final,
        "final_source": source,
        "n_expected": n_expected,
        "n_scored": len(rewards),
        "awaits_review": awaits,
    }


def worst(outcomes: list[str]) -> str | None:
    """One outcome for a cell: the worst of its trials'."""
    order = [str(outcome) for outcome in Outcome]
    return max(outcomes, key=order.index) if outcomes else None
