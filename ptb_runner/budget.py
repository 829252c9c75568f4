"""What a cell's agent and verifier may use: each of these has one value, wherever it is shown, enforced or recorded."""

from __future__ import annotations

from typing import Literal

from ptb_runner.config import Config


def agent_hours(config: Config) -> float | None:
    """Hours that the agent has: one value for the prompt, the timer and Harbor's limit. None: the task's own.

    `agent.timeout_hours` is for one agent; without it `budget.hours` counts, or `benchmark.limits.agent_sec`: these are
    exact. The benchmark's own hours are multiplied by the factor of its limits.
    """
    exact = config.benchmark.limits.agent_sec
    given = (config.agent.timeout_hours, config.budget.hours, None if exact is None else exact / 3600)
    chosen = next((hours for hours in given if hours is not None), None)
    return _times(config.benchmark.agent_hours, factor(config, "agent")) if chosen is None else chosen


def verifier_hours(config: Config) -> float | None:
    """Hours that the verifier has; None: the task's own."""
    exact = config.benchmark.limits.verifier_sec
    return _times(config.benchmark.verifier_hours, factor(config, "verifier")) if exact is None else exact / 3600


def factor(config: Config, phase: Literal["agent", "agent_setup", "verifier", "build"]) -> float:
    """By what the benchmark's or the task's own limit of a phase is multiplied."""
    limits = config.benchmark.limits
    own: float | None = getattr(limits, f"{phase}_multiplier")
    return limits.multiplier if own is None else own


def _times(hours: float | None, by: float) -> float | None:
    return None if hours is None else hours * by


def item_limit(config: Config) -> int:
    """Items that are scored, -1 for all."""
    return config.benchmark.evaluation.limit if config.budget.limit is None else config.budget.limit
