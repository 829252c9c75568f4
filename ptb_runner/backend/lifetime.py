"""How long a sandbox may live at most: the sum of a trial's phases, for one that its owner forgot."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ptb_runner.budget import agent_hours, factor, verifier_hours
from ptb_runner.config import Config

TRANSFER_HOURS = 2.0  # what lies between the phases: uploads, collecting, downloads
SETUP_SEC = 360.0  # for installing an agent, as Harbor has it
BUILD_SEC = 600.0  # for starting a sandbox, where a task does not say


def lifetime_sec(config: Config, task: Path) -> int:
    """The sum of all phases of a task folder's trial, and some."""
    settings = tomllib.loads((task / "task.toml").read_text())
    steps = settings.get("steps") or [settings]
    own = {role: sum(step.get(role, {}).get("timeout_sec", 600.0) for step in steps) for role in ("agent", "verifier")}
    agent, verifier = agent_hours(config), verifier_hours(config)
    build = settings.get("environment", {}).get("build_timeout_sec", BUILD_SEC)
    phases = [
        own["agent"] * factor(config, "agent") if agent is None else agent * 3600 * len(steps),
        own["verifier"] * factor(config, "verifier") if verifier is None else verifier * 3600 * len(steps),
        max(build * factor(config, "build"), config.benchmark.build_hours * 3600),
        SETUP_SEC * factor(config, "agent_setup"),
        TRANSFER_HOURS * 3600,
    ]
    return round(sum(phases))
