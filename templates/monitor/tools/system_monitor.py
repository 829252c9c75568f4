#!/usr/bin/env python3
"""Appends a line about this machine to a log every minute: CPU, memory, disk and GPUs.

    python3 system_monitor.py [--log FILE] [--every SECONDS] [--count LINES] [--disk FOLDER ...]

    2026-01-31T12:00:00Z cpu 37% of 16 | memory 20.1 of 128.0 GiB | disk / 31.0 of 400.0 GiB | gpu 0 NVIDIA H100 98% ...

A container's limits count where there are some (cgroup 2). What cannot be read shows as "?"; only a signal stops it.
"""

import argparse
import datetime
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
NVIDIA_SMI_SECONDS = 20
GPU_FIELDS = "index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
GIB, MIB = 2**30, 2**20


def cpu_seconds() -> float:
    """CPU time used so far: the container's, else the machine's."""
    try:
        stat = dict(line.split() for line in (CGROUP / "cpu.stat").read_text().splitlines())
        return int(stat["usage_usec"]) / 1e6
    except (OSError, ValueError, KeyError):
        user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
        return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def cpus() -> float:
    """How many CPUs may be used."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no container, or no limit ("max")
        return float(len(os.sched_getaffinity(0)))


def memory() -> tuple[float, float]:
    """Memory in use and at hand, in bytes; a container's without what it could give back, its cache of files."""
    kib = {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    total = kib["MemTotal"] * 1024
    try:
        limit = int((CGROUP / "memory.max").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return int((CGROUP / "memory.current").read_text()) - int(stat["inactive_file"]), min(limit, total)
    except (OSError, ValueError, KeyError):
        return total - kib["MemAvailable"] * 1024, total


def gpus() -> list[str]:
    """A description of each GPU; none where there is none."""
    command = ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except FileNotFoundError:
        return []
    except (OSError, subprocess.TimeoutExpired):
        return ["gpu ?"]
    if done.returncode:
        return ["gpu ?"]
    return [describe_gpu(line) for line in done.stdout.splitlines() if line.strip()]


def describe_gpu(line: str) -> str:
    try:
        index, name, busy, used, total, power, heat = (part.strip() for part in line.split(","))
        memory_part = f"memory {float(used) * MIB / GIB:.1f} of {float(total) * MIB / GIB:.1f} GiB"
        return f"gpu {index} {name} {busy}% {memory_part} {power} W {heat} C"
    except ValueError:  # "[N/A]"
        return f"gpu {line.strip()}"


def attempt(name: str, read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
        return f"{name} ?"


def describe_cpu(before: tuple[float, float] | None) -> str:
    """The CPUs' load since ``before``, a clock and the CPU seconds at that time."""
    count = cpus()
    if before is None:
        return f"cpu - of {count:g}"
    share = (cpu_seconds() - before[1]) / (time.monotonic() - before[0]) / count
    return f"cpu {share:.0%} of {count:g}"


def describe_memory() -> str:
    used, total = memory()
    return f"memory {used / GIB:.1f} of {total / GIB:.1f} GiB"


def describe_disk(folder: str) -> str:
    usage = shutil.disk_usage(folder)
    return f"disk {folder} {usage.used / GIB:.1f} of {usage.total / GIB:.1f} GiB"


def snapshot(before: tuple[float, float] | None, disks: list[str]) -> str:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: UP017  # Python 3.10
    parts = [attempt("cpu", lambda: describe_cpu(before)), attempt("memory", describe_memory)]
    parts += [attempt(f"disk {folder}", lambda folder=folder: describe_disk(folder)) for folder in disks]
    return f"{now} " + " | ".join([*parts, *gpus()])


def watch(log: Path, every: float, count: int | None, disks: list[str]) -> None:
    """Append a line now and after every ``every`` seconds, ``count`` in all; None: for ever."""
    before, written = None, 0
    while True:
        started = time.monotonic()
        line = snapshot(before, disks)
        try:
            before = (time.monotonic(), cpu_seconds())
        except (OSError, ValueError):
            before = None
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:  # anew each time: it may be moved or deleted
                file.write(line + "\n")
        except OSError as error:  # a full disk may have room again later
            print(error, file=sys.stderr, flush=True)
        written += 1
        if written == count:
            return
        time.sleep(max(0.0, every - (time.monotonic() - started)))


def main(arguments: list[str] | None = None) -> int:
    default = Path(os.environ.get("PTB_LOGS", "/logs"), "agent", "system_monitor.log")
    parser = argparse.ArgumentParser(description="Append a line about this machine to a log every minute.")
    parser.add_argument("--log", type=Path, default=default, help="the log, default: %(default)s")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between lines, default: %(default)g")
    parser.add_argument("--count", type=int, help="lines to write, default: no end")
    parser.add_argument("--disk", action="append", help="a folder whose disk is shown, default: /")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    watch(options.log, options.every, options.count, options.disk or ["/"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
