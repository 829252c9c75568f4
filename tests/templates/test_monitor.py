"""The system monitor: a line at a time, whatever the machine has."""

import re
import signal
import subprocess
import sys
import time

from template_kit import TEMPLATES, run

MONITOR = TEMPLATES / "monitor" / "tools" / "system_monitor.py"
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ cpu (-|\d+%) of [\d.]+"
    r" \| memory [\d.]+ of [\d.]+ GiB \| disk / [\d.]+ of [\d.]+ GiB( \| gpu .*)?"
)


def test_it_appends_a_line_at_a_time(tmp_path):
    log = tmp_path / "agent" / "system_monitor.log"
    for _ in range(2):
        command = [sys.executable, "-I", MONITOR, "--every", "0.2", "--count", "2"]
        assert run(*command, PTB_LOGS=str(tmp_path)).returncode == 0
    lines = log.read_text().splitlines()
    assert len(lines) == 4
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert "cpu -" in lines[0]
    assert "cpu -" not in lines[1]


def test_gpus_are_listed_where_there_are_some(tmp_path):
    script = tmp_path / "nvidia-smi"
    script.write_text(
        "#!/bin/sh\necho '0, NVIDIA H100 80GB HBM3, 98, 71680, 81920, 650.12, 61'\necho '1, NVIDIA H100, [N/A], x'\n"
    )
    script.chmod(0o755)
    command = [sys.executable, MONITOR, "--log", tmp_path / "log", "--count", "1"]
    run(*command, PATH=str(tmp_path))
    line = (tmp_path / "log").read_text()
    assert (
        " | gpu 0 NVIDIA H100 80GB HBM3 98% memory 70.0 of 80.0 GiB 650.12 W 61 C | gpu 1, NVIDIA H100, [N/A], x\n"
        in line
    )
    script.write_text("#!/bin/sh\nexit 9\n")
    run(*command, PATH=str(tmp_path))
    assert (tmp_path / "log").read_text().endswith(" | gpu ?\n")


def test_what_cannot_be_read_or_written_does_not_stop_it(tmp_path):
    command = [sys.executable, MONITOR, "--log", tmp_path / "log", "--count", "1", "--disk", "/none"]
    assert run(*command).returncode == 0
    assert "disk /none ?" in (tmp_path / "log").read_text()
    (tmp_path / "file").touch()
    blocked = [sys.executable, MONITOR, "--log", tmp_path / "file" / "log", "--every", "0", "--count", "2"]
    assert run(*blocked).returncode == 0


def test_it_ends_quietly_when_it_is_told_to(tmp_path):
    process = subprocess.Popen([sys.executable, MONITOR, "--log", tmp_path / "log"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 10
    while not (tmp_path / "log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
