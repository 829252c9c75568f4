"""Seconds and memory of collecting a sweep of 1,000 cells x 10 trials: `uv run python bench/collect.py`.

Each collection is a process of its own, as `ptb collect` is, its imports counted. The floor is reading the same files
and doing nothing with them. The last figure is of the same sweep without its result.json files, as killed runners
leave it: all 10,000 records are then made from the trials' own folders.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.results.collect_kit import Made, make_sweep  # noqa: E402

CHILD = """
import resource, sys, time
begin = time.monotonic()
from pathlib import Path
from ptb_runner.results.collect import collect
collected = collect(Path(sys.argv[1]))
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.monotonic() - begin, memory, collected.n_trials)
"""
FIRST_SEC, AGAIN_SEC, MOST_MB = 15.0, 3.0, 500.0


def make(folder: Path, cells: int, trials: int) -> None:
    """A sweep of 10 benchmarks x 4 agents x seeds, each cell.yaml about 15 KB; every tenth trial is unscored."""
    options = {f"option_{number}": f"the value of option {number}" for number in range(150)}
    made = []
    for number in range(cells):
        rewards = [(number * trials + trial) % 997 / 997 for trial in range(trials)]
        chosen = {"benchmark": f"bench_{number % 10}", "agent": f"agent_{number // 10 % 4}", "seed": number // 40}
        overrides = [f"{key}={value}" for key, value in chosen.items()]
        outcomes = [*rewards[:-1], "infra_error" if number % 2 else "no_model"]
        made.append(
            Made(
                trials=outcomes,
                benchmark=str(chosen["benchmark"]),
                agent=str(chosen["agent"]),
                overrides=overrides,
                gpus=1,
                options=options,
            )
        )
    make_sweep(folder, *made)


def collected(folder: Path, trials: int) -> tuple[float, float]:
    """Seconds and peak memory (MiB) of one collection."""
    command = [sys.executable, "-c", CHILD, str(folder)]
    out = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(out.stderr)
    seconds, memory, found = out.stdout.split()
    if int(found) != trials:
        raise SystemExit(f"{found} trials were collected, {trials} are there")
    return float(seconds), float(memory)


def floor(folder: Path) -> float:
    """Seconds to read the files that a collection reads."""
    begin = time.monotonic()
    for cell in folder.iterdir():
        for name in ("cell.yaml", "status.json", "result.json"):
            if cell.is_dir():
                (cell / name).read_bytes()
    return time.monotonic() - begin


def main() -> int:
    """Measure, print a table, and return 1 when a figure is over what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=10, help="trials of each cell")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ptb-bench-"))
    try:
        make(folder, chosen.cells, chosen.trials)
        expected = chosen.cells * chosen.trials
        read = floor(folder)
        figures = [("first collection", FIRST_SEC, *collected(folder, expected))]
        figures.append(("again, nothing new", AGAIN_SEC, *collected(folder, expected)))
        for path in folder.glob("*/result.json"):
            path.unlink()
        figures.append(("from the trials' folders", FIRST_SEC, *collected(folder, expected)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{'reading the files':26} {read:6.2f} s  (floor)")
    for name, most, seconds, memory in figures:
        print(f"{name:26} {seconds:6.2f} s  (at most {most:g})  {memory:6.0f} MB  (at most {MOST_MB:g})")
    return int(any(seconds > most or memory > MOST_MB for _, most, seconds, memory in figures))


if __name__ == "__main__":
    sys.exit(main())
