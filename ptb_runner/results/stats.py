"""Statistics of a dataset's cells: mean reward, its spread over runs, its standard error, pass@k, task by task.

The names are those that users of terminal-bench's scripts know; what stands behind them is computed so that an error
is no zero, a missing trial is not left out in silence, and no k is reported that the attempts do not allow.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ptb_runner.outcome import SCORED, Outcome
from ptb_runner.results.row import Row

DEFAULT_MAX_ERROR_RATE = 0.1


def of_datasets(rows: list[Row]) -> list[dict[str, Any]]:
    """The statistics of each cell that ran tasks of a dataset, be it one."""
    return [statistics_of(row) for row in rows if _is_dataset(row)]


def _is_dataset(row: Row) -> bool:
    tasks, options = row.result.get("tasks") or [], row.benchmark_options
    return len(tasks) > 1 or bool(tasks and any(options.get(name) for name in ("dataset", "include", "n_tasks")))


def statistics_of(row: Row) -> dict[str, Any]:
    """The statistics of one cell.

    `mean_reward` is the mean over scored trials, None with the reason in `refused` when more than `max_error_rate`
    of the expected trials are errored or missing. `sem` is its standard error with the tasks as clusters (attempts at
    one task are not independent); `run_scores` has the mean of each attempt number, `std_sample` (also as `std`) and
    `std_population` are the standard deviations of those. `pass_at_k` is the unbiased estimate
    1 - C(n-c, k)/C(n, k) (Chen et al. 2021), averaged over tasks with scored trials, for k up to the fewest attempts
    that any of them has.
    """
    result = row.result
    rewards = _rewards(row)
    expected = len(result["tasks"]) * result["attempts"]
    scored = sum(map(len, rewards.values()))
    counts = {
        "n_expected": expected,
        "n_scored": scored,
        "n_missing": max(0, expected - _over(row)),
        "n_errored": _over(row) - scored,
    }
    refused = _refusal(counts, result.get("max_error_rate", DEFAULT_MAX_ERROR_RATE))
    values = [value for attempts in rewards.values() for value in attempts.values()]
    runs = _run_scores(rewards, result["attempts"], len(result["tasks"]))
    means = [run["score"] for run in runs if run["score"] is not None]
    deviation = statistics.stdev(means) if len(means) > 1 else None
    return {
        "cell": row.number,
        "benchmark": row.benchmark,
        "model": row.model,
        "agent": row.agent,
        **counts,
        "mean_reward": statistics.fmean(values) if values and not refused else None,
        "refused": refused,
        "sem": clustered_error(rewards.values()) if not refused else None,
        "std": deviation,
        "std_sample": deviation,
        "std_population": statistics.pstdev(means) if means else None,
        "run_scores": runs,
        "pass_at_k": _pass_at_k(rewards, result.get("pass_reward", 1.0)) if not refused else {},
        "server_gpu_hours": row.server_gpu_hours,
        "n_tasks": len(result["tasks"]),
        "n_tasks_scored": sum(bool(attempts) for attempts in rewards.values()),
        "per_task": {task: _task(row, task, rewards[task]) for task in result["tasks"]},
    }


def _task_of(trial: dict[str, Any]) -> str:
    return trial["name"].rpartition("__")[0]


def _over(row: Row) -> int:
    """Trials that came to an end of their own; a cancelled one is missing."""
    return sum(trial["outcome"] != Outcome.cancelled for trial in row.trials)


def _rewards(row: Row) -> dict[str, dict[int, float]]:
    """Rewards of scored trials by task and attempt; every task of the dataset is there."""
    found: dict[str, dict[int, float]] = {task: {} for task in row.result["tasks"]}
    for trial in row.trials:
        if trial["outcome"] in SCORED and trial["reward"] is not None and _task_of(trial) in found:
            found[_task_of(trial)][int(trial["name"].rpartition("__")[2])] = trial["reward"]
    return found


def _refusal(counts: dict[str, int], max_error_rate: float) -> str | None:
    lost, expected = counts["n_errored"] + counts["n_missing"], counts["n_expected"]
    if not expected or lost / expected <= max_error_rate:
        return None
    return (
        f"{lost} of {expected} trials have no score ({counts['n_errored']} errored, {counts['n_missing']} missing): "
        f"more than report.max_error_rate={max_error_rate:g}, so their mean says little"
    )


def _run_scores(rewards: dict[str, dict[int, float]], attempts: int, n_tasks: int) -> list[dict[str, Any]]:
    """The mean over tasks of each attempt number."""
    runs = []
    for number in range(1, attempts + 1):
        values = [found[number] for found in rewards.values() if number in found]
        mean = statistics.fmean(values) if values else None
        runs.append({"attempt": number, "score": mean, "n_scored": len(values), "n_expected": n_tasks})
    return runs


def clustered_error(clusters: Iterable[dict[int, float]]) -> float | None:
    """Standard error of the mean over all values when those of one cluster depend on each other; None below two.

    sqrt(G/(G-1) * sum over clusters of (sum of deviations)^2) / N (Cameron & Miller 2015, the CR1 estimator of a
    mean). With one value a cluster it is the sample standard deviation over the root of their number.
    """
    groups = [list(cluster.values()) for cluster in clusters if cluster]
    values = [value for group in groups for value in group]
    if len(groups) < 2:
        return None
    mean = statistics.fmean(values)
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in groups)
    return math.sqrt(len(groups) / (len(groups) - 1) * squares) / len(values)


def _pass_at_k(rewards: dict[str, dict[int, float]], pass_reward: float) -> dict[str, float]:
    tried = [list(attempts.values()) for attempts in rewards.values() if attempts]
    most = min(map(len, tried), default=0)
    passed = [(len(values), sum(value >= pass_reward for value in values)) for values in tried]
    return {str(k): statistics.fmean(pass_at_k(n, c, k) for n, c in passed) for k in range(1, most + 1)}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that one of `k` attempts passes, estimated from `c` passes in `n` attempts (k <= n)."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _task(row: Row, task: str, rewards: dict[int, float]) -> dict[str, Any]:
    outcomes: dict[str, int] = defaultdict(int)
    for trial in row.trials:
        if _task_of(trial) == task:
            outcomes[trial["outcome"]] += 1
    return {
        "mean_reward": statistics.fmean(rewards.values()) if rewards else None,
        "rewards": [rewards.get(number) for number in range(1, row.result["attempts"] + 1)],
        "outcomes": dict(outcomes),
    }


# --- stats.txt ----------------------------------------------------------------------------------------


def page(found: list[dict[str, Any]]) -> str:
    """The statistics as text, for reading in a terminal."""
    return "\n".join(_section(one) for one in found)


def _section(one: dict[str, Any]) -> str:
    lines = [f"cell {one['cell']}: {one['benchmark']}, agent {one['agent']}, model {one['model']}"]
    lines.append(
        f"trials: {one['n_expected']} expected, {one['n_scored']} scored, {one['n_errored']} errored, "
        f"{one['n_missing']} missing; tasks: {one['n_tasks_scored']} of {one['n_tasks']} with a score"
    )
    error = "" if one["sem"] is None else f" ± {one['sem']:.4f} (standard error, tasks as clusters)"
    lines.append(
        f"mean reward: not given: {one['refused']}"
        if one["refused"]
        else f"mean reward: {_number(one['mean_reward'])}{error}"
    )
    lines += [
        f"run {run['attempt']}: {_number(run['score'])} ({run['n_scored']}/{run['n_expected']})"
        for run in one["run_scores"]
    ]
    if one["std_sample"] is not None:
        lines.append(f"std over runs: {one['std_sample']:.4f} (sample), {one['std_population']:.4f} (population)")
    lines += [f"pass@{k}: {value:.4f}" for k, value in one["pass_at_k"].items()]
    if one["server_gpu_hours"] is not None:
        lines.append(f"GPU-hours of the model server: {one['server_gpu_hours']:.4g}")
    width = max(map(len, one["per_task"]), default=0)
    lines += ["", f"{'task':<{width}}  mean    rewards"]
    for task, found in one["per_task"].items():
        rewards = " ".join(_number(value) for value in found["rewards"])
        lines.append(f"{task:<{width}}  {_number(found['mean_reward']):<6}  {rewards}")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
