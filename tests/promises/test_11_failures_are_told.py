"""Promise 11: failed cells are reported as failed, each with its own reason, at once, and the exit code says so."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.run_kit import agent


def test_three_failing_cells_give_three_reasons(ptb):
    reasons = ("no such tool", "disk quota", "out of luck")
    commands = ",".join(f"'echo {reason} >&2; exit 3'" for reason in reasons)
    ran = ptb("-m", "benchmark=hello", *agent("Scripted"), f"agent.options.command={commands}")
    assert ran.code == 1
    for reason in reasons:
        assert reason in ran.out
    assert "0/3 planned trials scored" in ran.out


def test_a_failure_is_told_while_the_others_still_run(tmp_path):
    gate = tmp_path / "gate"
    failing = ["agent=custom", "agent.id=test", "agent.import_path=tests.agents:Scripted,tests.agents:Gated"]
    options = "agent.options={command:'exit 7'},{gate:'" + str(gate) + "'}"
    command = ["-m", "benchmark=hello", *failing, options, "sweep.zip=[[agent.import_path,agent.options]]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ptb_runner", *command], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    begin = time.monotonic()
    line = next((line for line in process.stdout if line.startswith("cell 0 ")), "")
    assert "infra_error" in line
    assert process.poll() is None
    assert time.monotonic() - begin < 30
    gate.touch()
    process.communicate(timeout=30)
    assert process.returncode == 1
