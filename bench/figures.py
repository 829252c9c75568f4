"""What the programs in this folder share: a clean environment, a task that an oracle solves, and what was missed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This process's variables and more, with Harbor kept off the network."""
    return {**os.environ, **more, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def add_solution(task: Path) -> Path:
    """Give a task folder what its oracle does; returns the folder."""
    (task / "solution").mkdir()
    script = task / "solution" / "solve.sh"
    script.write_text("#!/usr/bin/env bash\nmkdir -p /app && printf ok > /app/answer.txt\n")
    script.chmod(0o755)
    return task


def told(missed: list[str]) -> int:
    """Print each promise that was missed; the exit code."""
    for line in missed:
        print(f"missed: {line}")
    return int(bool(missed))
