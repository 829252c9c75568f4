"""Promise 5: what was killed in the middle is run again alone; nothing finished is renumbered or overwritten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ptb_runner import watch
from tests.run_kit import agent


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder with its time and content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".runner.lock"
    }


def test_kill_9_in_cell_2_of_4_leaves_cell_1_untouched(ptb, tmp_path):
    gate, rows, sweep = tmp_path / "gate", tmp_path / "cells.txt", tmp_path / "sweep"
    rows.write_text("\n".join(f"seed={n} agent.options.gate='{gate if n == 2 else ''}'" for n in (1, 2, 3, 4)))
    command = ["-m", "benchmark=hello", *agent("Gated"), f"sweep.file={rows}", "launcher.max_cells=1"]
    command += [f"hydra.sweep.dir={sweep}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ptb_runner", *command], stdout=subprocess.DEVNULL, cwd=tmp_path, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not (sweep / "sweep.yaml").exists() or "agent" not in watch.read(sweep)[1].running.values():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    first = content(sweep / "0")
    assert [state.state for state in watch.read(sweep)] == ["finished", "running", "planned", "planned"]

    gate.touch()
    ran = ptb("resume", sweep)

    assert ran.code == 0, ran.out + ran.err
    assert content(sweep / "0") == first
    assert [state.outcome for state in watch.read(sweep)] == ["scored"] * 4
    assert [path.name for path in sorted(sweep.glob("*/superseded/*"))] == ["hello__001.1"]
    assert len(list(sweep.glob("*/job/*/result.json"))) == 4
