"""What the runner itself spends on Modal trials, on a loopback fake: `uv run --all-extras python bench/modal.py`.

100 hello trials at 100: the runner's CPU per trial, and its memory; beside it the same by `harbor run --env modal`.
Needs root, for the fake's sandboxes. Wall time is the fake's and the pace's: it says nothing about Modal.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import figures  # noqa: E402
from tests.fakes.modal_server.handle import ModalServer  # noqa: E402
from tests.run_kit import REWARD_IF_OK, TASK_TOML, make_task  # noqa: E402

MOST_CPU_SEC, MOST_MEMORY_MB = 0.3, 400


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float, float, str]:
    """Wall seconds, CPU seconds and peak MiB of a command with its children, and what it printed."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    out, _ = process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, cpu, after.ru_maxrss / 1024, out


def stock_task(folder: Path) -> Path:
    """A hello as Harbor's own Modal environment takes it."""
    made = make_task(folder, REWARD_IF_OK)
    toml = TASK_TOML.replace("[environment]\n", '[environment]\ndocker_image = "python:3.12-slim-bookworm"\n')
    image = '[verifier.environment]\ndocker_image = "python:3.12-slim-bookworm"\n'
    (made / "task.toml").write_text(toml.replace("[verifier.environment]\n", image))
    return figures.add_solution(made)


def main() -> int:
    """Measure, print, and return 1 when a figure misses what is promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--no-stock", action="store_true", help="do not measure `harbor run --env modal`")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ptb-bench-"))
    server = ModalServer.start(folder)
    environment = figures.environment(server.env)
    missed = []
    try:
        own = [sys.executable, "-m", "ptb_runner", "benchmark=hello", "agent=oracle", "backend=modal"]
        _, start_up, _, _ = measure([*own, "attempts=1"], folder, environment)
        wall, cpu, memory, out = measure(
            [*own, f"attempts={given.trials}", f"concurrency={given.trials}"], folder, environment
        )
        passed = next((line for line in out.splitlines() if "trials passed" in line), out[-2000:])
        each = (cpu - start_up) / max(given.trials - 1, 1)
        print(f"ours, {given.trials} at {given.trials}: {passed}; {wall:.1f} s, CPU {cpu:.1f} s in all")
        print(f"  {each:.3f} s CPU a trial (beyond a run of one, {start_up:.1f} s), {memory:.0f} MiB at most")
        missed += [passed] if f"{given.trials}/{given.trials} trials passed" not in out else []
        missed += [f"{each:.2f} s CPU a trial, at most {MOST_CPU_SEC}"] if each > MOST_CPU_SEC else []
        missed += [f"{memory:.0f} MiB, at most {MOST_MEMORY_MB}"] if memory > MOST_MEMORY_MB else []
        if not given.no_stock:
            harbor = str(Path(sys.executable).with_name("harbor"))
            command = [
                harbor,
                "run",
                "--path",
                str(stock_task(folder / "stock")),
                "--agent",
                "oracle",
                "--env",
                "modal",
            ]
            many = ["--n-attempts", str(given.trials), "--n-concurrent", str(given.trials), "--yes"]
            wall, cpu, memory, out = measure([*command, *many], folder, environment)
            print(f"harbor run --env modal: {wall:.1f} s, CPU {cpu:.1f} s in all, {memory:.0f} MiB at most")
            print("  " + " | ".join(line.strip() for line in out.splitlines()[-12:] if line.strip())[:600])
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return figures.told(missed)


if __name__ == "__main__":
    sys.exit(main())
