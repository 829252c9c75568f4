"""Wall-clock figures of one cell, medians over several runs in one session: `uv run python bench/first_slice.py`.

Each figure stands beside its floor, measured in the same session: this machine may be noisy, ratios are not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PTB = ["uv", "run", "--project", str(ROOT), "python", "-m", "ptb_runner"]
IMPORTS = "import harbor.trial.trial, harbor.job_plan, harbor.lint.task, harbor.agents.factory"

# name, command, most seconds that the project allows itself (None: a floor to compare with)
FIGURES: list[tuple[str, list[str], float | None]] = [
    ("python and harbor imports", ["uv", "run", "--project", str(ROOT), "python", "-c", IMPORTS], None),
    ("--help", [*PTB, "--help"], 1.5),
    ("configuration error", [*PTB, "agent.timeout_hours=0"], 1.5),
    ("hello x 8, 4 at once", [*PTB, "benchmark=hello", "agent=oracle", "attempts=8", "concurrency=4"], 8.0),
    ("the default command", PTB, 50.0),
]


def seconds(command: list[str], folder: Path) -> float:
    """Wall seconds of one run of a command."""
    begin = time.monotonic()
    environment = os.environ | {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


def main() -> int:
    """Measure, print a table, and return 1 when a figure is over what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each command; the first one more is not counted")
    runs = parser.parse_args().runs
    folder = Path(tempfile.mkdtemp(prefix="ptb-bench-"))
    medians: dict[str, float] = {}
    over = False
    try:
        for name, command, most in FIGURES:
            seconds(command, folder)
            taken = [seconds(command, folder) for _ in range(runs)]
            medians[name] = statistics.median(taken)
            over |= most is not None and medians[name] > most
            allowed = f"at most {most:g}" if most else "floor"
            print(f"{name:28} {medians[name]:6.2f} s  ({min(taken):.2f} to {max(taken):.2f}; {allowed})", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    beyond = medians["hello x 8, 4 at once"] - medians["python and harbor imports"]
    print(f"{'hello beyond the imports':28} {beyond:6.2f} s  (at most 2.5)")
    return int(over or beyond > 2.5)


if __name__ == "__main__":
    sys.exit(main())
