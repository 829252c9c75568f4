"""The whole: one cell, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from ptb_runner.config.agent import AgentConfig
from ptb_runner.config.backend import BackendConfig
from ptb_runner.config.declare import option
from ptb_runner.config.judge import JudgesConfig
from ptb_runner.config.launcher import LauncherConfig
from ptb_runner.config.serve import ServeConfig
from ptb_runner.config.task import (
    BenchmarkConfig,
    BudgetConfig,
    ContentConfig,
    ModelConfig,
    ParityConfig,
    PinsConfig,
)


@dataclass
class SweepConfig:
    """How a command line with -m becomes cells."""

    zip: list[list[str]] = option(
        [], "Swept keys that go together instead of being combined, such as [[benchmark,model]].", result=False
    )
    file: str | None = option(None, "A file with the overrides of one cell on each line.", result=False)


@dataclass
class LimitsConfig:
    """Caps on what a sweep may spend: new cells are not started beyond them, running ones finish."""

    max_gpu_hours: float | None = option(None, "GPU-hours of a sweep; null: no cap.", above=0, result=False)
    max_usd: float | None = option(
        None, "Dollars of a sweep (LLM costs and backend.usd_per_gpu_hour); null: no cap.", above=0, result=False
    )


@dataclass
class RetryConfig:
    """What is tried again by itself."""

    infra_errors: int = option(1, "Times a trial is run again after an infrastructure error.", least=0, result=False)
    wait_sec: float = option(
        5.0, "Wait before the first such rerun, doubled each time (seconds).", least=0, result=False
    )


@dataclass
class PreflightConfig:
    """What is looked at before anything is launched, beyond what can be seen on this machine."""

    probe_keys: bool = option(
        False, "Ask the providers, by one free call a key, whether they take the keys.", result=False
    )


@dataclass
class ProgressConfig:
    """How progress is shown."""

    interval_sec: float = option(30.0, "Seconds between progress lines when not on a terminal.", above=0, result=False)
    agent_log_sec: float = option(
        10.0,
        "Seconds between looks at the log of an agent that works; 0: only when it has ended.",
        least=0,
        result=False,
    )


@dataclass
class ReportConfig:
    """What is said of results."""

    max_error_rate: float = option(
        0.1, "Share of a dataset's trials without a score above which no mean is given.", least=0, most=1, result=False
    )


@dataclass
class Config:
    """One cell: benchmark x model x agent x backend, and how it is run."""

    benchmark: BenchmarkConfig = option(MISSING, "What the agent is asked to do.")
    judge: JudgesConfig = option(JudgesConfig, "Who looks at what it did.", result=False)
    model: ModelConfig = option(MISSING, "The model to post-train, or to evaluate.")
    agent: AgentConfig = option(MISSING, "Who does it.")
    backend: BackendConfig = option(MISSING, "Where it is done.", result=False)
    budget: BudgetConfig = option(BudgetConfig, "How much of it.")
    content: ContentConfig = option(ContentConfig, "Where prompt and evaluation come from.")
    pins: PinsConfig = option(PinsConfig, "Versions of what an image is built from.")
    parity: ParityConfig = option(ParityConfig, "What it is to match.", result=False)
    launcher: LauncherConfig = option(MISSING, "Where the runner process lives.", result=False)
    serve: ServeConfig = option(ServeConfig, "Who serves the model under test.")
    attempts: int = option(1, "Trials of each task.", least=1, most=10_000)
    concurrency: int = option(4, "Trials at once.", least=1, most=10_000, result=False)
    seed: int = option(0, "Seed for the task's own programs (PTB_SEED in the sandbox).", least=0)
    dry_run: bool = option(False, "Render and check everything, print the plan, launch nothing.", result=False)
    fail_fast: bool = option(False, "Start no further cell of a sweep after one that failed.", result=False)
    sweep: SweepConfig = option(SweepConfig, "How -m becomes cells.", result=False)
    limits: LimitsConfig = option(LimitsConfig, "Caps on what a sweep may spend.", result=False)
    retry: RetryConfig = option(RetryConfig, "What is tried again.", result=False)
    report: ReportConfig = option(ReportConfig, "What is said of results.", result=False)
    preflight: PreflightConfig = option(PreflightConfig, "What is looked at before a launch.", result=False)
    progress: ProgressConfig = option(ProgressConfig, "How progress is shown.", result=False)


GROUPS = ("benchmark", "model", "agent", "backend", "budget", "content", "pins", "judge", "launcher", "serve")


def task_env_vars(config: Config) -> list[str]:
    """Names of the host variables that the agent's sandbox gets beside the agent's own: the task's."""
    return list(dict.fromkeys([*config.benchmark.env_vars, *config.model.env_vars]))
