"""Wall-clock figures of backend=podman against stock `harbor run --env podman`: `uv run python bench/podman.py`.

Both run the same task, in this one session, one trial and then eight at four. Stock needs podman-compose 1.6.0,
which is installed into a throw-away environment; where that cannot be had, only ours is measured, and we say why.
On a restricted machine start it in a mount namespace without the hybrid cgroups, as .ci/run does.
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
sys.path.insert(0, str(ROOT))

from bench import figures  # noqa: E402
from tests.podman.podman_kit import IMAGE, make_image, podman  # noqa: E402
from tests.run_kit import REWARD_IF_OK, TASK_TOML, make_task  # noqa: E402

IMPORTS = "import harbor.trial.trial, harbor.job_plan, harbor.lint.task, harbor.agents.factory"
MOST_BEYOND_IMPORTS_SEC = 4.0
LEAST_RATIO = {1: 6.0, 8: 10.0}
MOST_PROCESSES = 8
# Writes down every start of podman, also those by podman's own helpers, and goes on as podman.
COUNTING = '#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n'


def seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Wall seconds of one run of a command, which must succeed."""
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    taken = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return taken


def task(folder: Path) -> Path:
    """A trivial task with a Dockerfile and a separate verifier, as both runners take it."""
    made = make_task(folder, REWARD_IF_OK, TASK_TOML.replace('"no-network"', '"public"'))
    (made / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    return figures.add_solution(made)


def stock_environment(folder: Path) -> tuple[dict[str, str] | None, str]:
    """Variables with which stock Harbor finds podman-compose; None, and why, when it cannot be had."""
    venv = folder / "compose"
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "podman-compose==1.6.0"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return None, done.stderr.strip()[-300:]
    return {"PATH": f"{venv}/bin:{os.environ['PATH']}"}, ""


def ours(made: Path, trials: int, at_once: int) -> list[str]:
    return [
        *(sys.executable, "-m", "ptb_runner", "benchmark=task", f"benchmark.path={made}", "agent=oracle"),
        *("backend=podman", f"attempts={trials}", f"concurrency={at_once}"),
    ]


def stock(made: Path, trials: int, at_once: int) -> list[str]:
    harbor = Path(sys.executable).with_name("harbor")
    return [
        *(str(harbor), "run", "--path", str(made), "--agent", "oracle", "--env", "podman", "--no-delete"),
        *("--n-attempts", str(trials), "--n-concurrent", str(at_once), "--yes"),
    ]


def processes(made: Path, folder: Path, environment: dict[str, str]) -> int:
    """How many podmans one trial starts: the difference between a run of three trials and one of one."""
    real = shutil.which("podman")
    counts = []
    for trials in (1, 3):
        (folder / "bin").mkdir(exist_ok=True)
        log = folder / f"calls-{trials}"
        (folder / "bin" / "podman").write_text(COUNTING.format(log=log, real=real))
        (folder / "bin" / "podman").chmod(0o755)
        path = {"PATH": f"{folder / 'bin'}:{environment['PATH']}"}
        seconds(ours(made, trials, 1), folder, environment | path)
        # podman gives conmon its own path to clean up with: one more for each container that was run.
        calls = log.read_text().splitlines()
        counts.append(len(calls) + sum(call.startswith("run ") for call in calls))
    return round((counts[1] - counts[0]) / 2)


def main() -> int:
    """Measure, print, and return 1 when a figure misses what is promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each of our commands; stock runs once")
    runs = parser.parse_args().runs
    folder = Path(tempfile.mkdtemp(prefix="ptb-bench-"))
    environment = figures.environment(podman().variables)
    missed = []
    try:
        make_image()
        made = task(folder / "trivial")
        imports = statistics.median(seconds([sys.executable, "-c", IMPORTS], folder, environment) for _ in range(runs))
        print(f"python and harbor imports      {imports:7.2f} s", flush=True)
        extra, reason = stock_environment(folder)
        for trials, at_once in ((1, 1), (8, 4)):
            own = statistics.median(seconds(ours(made, trials, at_once), folder, environment) for _ in range(runs))
            print(f"ours, {trials} at {at_once}                   {own:7.2f} s", flush=True)
            if trials == 1 and own - imports > MOST_BEYOND_IMPORTS_SEC:
                missed.append(f"{own - imports:.1f} s beyond the imports, at most {MOST_BEYOND_IMPORTS_SEC:g}")
            if extra is None:
                print(f"stock, {trials} at {at_once}                  not measured: {reason}")
                continue
            other = seconds(stock(made, trials, at_once), folder, environment | extra)
            ratio = other / own
            print(
                f"stock, {trials} at {at_once}                  {other:7.2f} s, {ratio:.1f} times as long", flush=True
            )
            if ratio < LEAST_RATIO[trials]:
                missed.append(f"{trials} at {at_once}: {ratio:.1f} times faster, at least {LEAST_RATIO[trials]:g}")
        count = processes(made, folder, environment)
        print(f"podman processes a trial       {count:7} (at most {MOST_PROCESSES})")
        missed += [f"{count} podman processes a trial"] if count > MOST_PROCESSES else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return figures.told(missed)


if __name__ == "__main__":
    sys.exit(main())
