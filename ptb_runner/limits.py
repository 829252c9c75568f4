"""Caps on what a sweep may spend: beyond them no further cell starts, whatever its launcher; running ones finish."""

from __future__ import annotations

import time
from pathlib import Path

from ptb_runner import watch
from ptb_runner.config import Config

# States of a cell that `fail_fast` stops at.
_FAILED = frozenset({"failed", "lost"})
_BAD_OUTCOMES = frozenset({"infra_error", "eval_failed", "judge_missing"})


def reason_not_to_start(sweep: Path, config: Config) -> str | None:
    """Why the next cell must not start, in a line; None when it may."""
    caps = config.limits
    if caps.max_gpu_hours is None and caps.max_usd is None and not config.fail_fast:
        return None
    states = watch.read(sweep)
    if config.fail_fast and (bad := next((one for one in states if _is_bad(one)), None)):
        return f"fail_fast: cell {bad.number} {bad.outcome or bad.state}"
    gpu_hours, usd = spent(states, config)
    if caps.max_gpu_hours is not None and gpu_hours >= caps.max_gpu_hours:
        return f"limits.max_gpu_hours={caps.max_gpu_hours:g} reached: {gpu_hours:.3g} spent"
    if caps.max_usd is not None and usd >= caps.max_usd:
        return f"limits.max_usd={caps.max_usd:g} reached: {usd:.3g} spent"
    return None


def _is_bad(state: watch.CellState) -> bool:
    return state.state in _FAILED or (state.state == "finished" and state.outcome in _BAD_OUTCOMES)


def spent(states: list[watch.CellState], config: Config) -> tuple[float, float]:
    """GPU-hours and dollars of a sweep until now; trials that run count with the time since their phase began."""
    now = time.time()
    running = sum(now - since for state in states for since in state.since.values()) / 3600 * config.benchmark.gpus
    gpu_hours = sum(state.gpu_hours for state in states) + running
    return gpu_hours, sum(state.usd for state in states) + running * config.backend.usd_per_gpu_hour
