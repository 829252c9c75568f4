"""What a cell's agent and verifier may use: each of these has one value, wherever it is shown, enforced or recorded."""

from __future__ import annotations

from ptb_runner.config import Config


def agent_hours(config: Config) -> float | None:
    """Hours that the agent has: one value for the prompt, the timer and Harbor's limit. None: the task's own.

    `agent.timeout_hours` is for one agent; without it `budget.hours` counts, which is the benchmark's own
    `limits.agent_sec` or `agent_hours` unless another budget was chosen.
    """
    exact = config.benchmark.limits.agent_sec
    given = (
        config.agent.timeout_hours,
        config.budget.hours,
        None if exact is None else exact / 3600,
        config.benchmark.agent_hours,
    )
    return next((hours for hours in given if hours is not None), None)


def verifier_hours(config: Config) -> float | None:
    """Hours that the verifier has; None: the task's own."""
    exact = config.benchmark.limits.verifier_sec
    return config.benchmark.verifier_hours if exact is None else exact / 3600


def item_limit(config: Config) -> int:
    """Items that are scored, -1 for all."""
    return config.benchmark.evaluation.limit if config.budget.limit is None else config.budget.limit
