"""Figures of sweeps, in one session: `uv run python bench/sweeps.py [--peer]`.

100 hello cells inline beside the sandbox work itself; planning 1,000 cells; `ptb status` on them. With --peer also the
same three empty cells through hydra-submitit-launcher, in an environment of its own.
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
PYTHON = sys.executable
PTB = [PYTHON, "-m", "ptb_runner"]

# As many sandboxes as 100 hello trials use (one for the agent, one for the verifier), four at a time, and no more.
FLOOR = """
import asyncio
from ptb_runner.sandbox import bwrap, scratch
from ptb_runner.sandbox.box import Box, Command

async def one(gate):
    async with gate:
        folder = scratch.create(None)
        box = await Box.start(bwrap.Layout(folder.path))
        await box.run(Command("true", "/", {}))
        await box.stop()
        await asyncio.to_thread(folder.remove)

async def main():
    gate = asyncio.Semaphore(4)
    await asyncio.gather(*(one(gate) for _ in range(200)))

asyncio.run(main())
"""

PEER = """
import hydra
@hydra.main(version_base=None, config_name=None)
def main(cfg): pass
main()
"""


def run(command: list[str], folder: Path) -> tuple[float, float, str]:
    """Wall seconds, peak memory (MB) and output of one command."""
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    out = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    return time.monotonic() - begin, usage.ru_maxrss / 1000, out


def figure(name: str, seconds: float, most: float | None, extra: str = "") -> bool:
    """Print a figure; True when it is over what is allowed."""
    print(f"{name:44} {seconds:7.2f} s  ({f'at most {most:g}' if most else 'to compare with'}{extra})", flush=True)
    return most is not None and seconds > most


def main() -> int:
    """Measure, print, and return 1 when a figure is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="also measure hydra-submitit-launcher")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ptb-bench-"))
    over = False
    try:
        floor, _, _ = run([PYTHON, "-c", FLOOR], folder)
        figure("floor: 200 sandboxes, 4 at once", floor, None)
        hello = ["-m", "benchmark=hello", "agent=oracle", "launcher.max_cells=4"]
        seconds, _, out = run([*PTB, *hello, "seed=range(100)", f"hydra.sweep.dir={folder / 'hello'}"], folder)
        assert "100/100 planned trials scored" in out, out[-2000:]
        over |= figure("100 hello cells inline, 4 at a time", seconds, 60, f", {seconds / floor:.1f} times the floor")

        swept = ["-m", "benchmark=addition,hello", "agent=oracle,nop", "seed=range(250)", "dry_run=true"]
        seconds, memory, out = run([*PTB, *swept, f"hydra.sweep.dir={folder / 'plan'}"], folder)
        assert "nothing was launched" in out, out[-2000:]
        over |= figure("planning 1,000 cells", seconds, 90, f"; {memory:.0f} MB of 600") or memory > 600

        taken = [run([*PTB, "status", str(folder / "plan")], folder)[0] for _ in range(3)]
        over |= figure("ptb status on 1,000 cells", statistics.median(taken), 2)
        three = ["-m", "benchmark=hello", "agent=oracle", "seed=1,2,3", "launcher=submitit_local"]
        ours, _, _ = run([*PTB, *three], folder)
        figure("3 hello cells, launcher=submitit_local", ours, None)
        if chosen.peer:
            figure("3 empty cells, hydra-submitit-launcher", peer(folder), None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(over)


def peer(folder: Path) -> float:
    """Seconds of three empty cells through hydra-submitit-launcher's local launcher."""
    environment = folder / "peer"
    subprocess.run(["uv", "venv", "-q", "--python", PYTHON, str(environment)], check=True)
    python = str(environment / "bin" / "python")
    subprocess.run(["uv", "pip", "install", "-q", "--python", python, "hydra-submitit-launcher==1.2.0"], check=True)
    (folder / "peer.py").write_text(PEER)
    return run([python, "peer.py", "-m", "hydra/launcher=submitit_local", "+x=1,2,3"], folder)[0]


if __name__ == "__main__":
    sys.exit(main())
