"""Slurm: what its clients say, with an end to every wait, and submission through submitit.

submitit finds out about jobs through `sacct` alone, which many clusters do not have: there a cancelled job would be
waited for for ever. `squeue` is asked first; it knows a job until some minutes after its end.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptb_runner.budget import agent_hours, verifier_hours
from ptb_runner.config import Config, SlurmConfig
from ptb_runner.explain import UsageError
from ptb_runner.launch import job

CLIENT_SEC = 10.0
_DEFAULT_ARRAY_SIZE = 1000
_IDS_AT_ONCE = 200
# Written by submitit; other values would break how jobs are found.
_RESERVED = frozenset({"array", "output", "error", "open-mode", "signal", "job-name", "dependency"})

ACTIVE = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"), "queued"),
    **dict.fromkeys(("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING"), "running"),
    **dict.fromkeys(("SIGNALING", "STAGE_OUT"), "running"),
}


def ask(*command: str) -> str | None:
    """What a Slurm client prints; None when it is not there, fails, or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_SEC, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def jobs() -> dict[str, tuple[str, str]] | None:
    """State and reason of all jobs of this user that the controller still knows, by id; None without an answer."""
    listed = ask("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T|%r")
    if listed is None:
        return None
    rows = [line.strip().split("|", 2) for line in listed.splitlines()]
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def accounted(ids: list[str]) -> dict[str, str]:
    """How jobs ended, as accounting tells it; {} where there is none."""
    arrays = ",".join(dict.fromkeys(one.partition("_")[0] for one in ids))
    listed = ask("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={arrays}")
    rows = [line.split("|") for line in (listed or "").splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def cancel(ids: list[str]) -> None:
    """Ask for the end of jobs; whether it came is for `jobs` to tell."""
    for some in itertools.batched(ids, _IDS_AT_ONCE):
        ask("scancel", "--quiet", *some)


def max_array_size() -> int:
    """How many tasks an array may have on this cluster."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config") or "")
    return int(found.group(1)) if found else _DEFAULT_ARRAY_SIZE


# --- Checks -------------------------------------------------------------------------------------------


def problems(settings: SlurmConfig, cells: list[Config]) -> list[str]:
    """What would keep the cells from running under Slurm; nothing is submitted."""
    found = [*_reserved(settings), *dict.fromkeys(_too_short(settings, cells))]
    if not shutil.which("sbatch"):
        found.append("launcher=slurm: there is no sbatch here\n  start from a login node, or choose another launcher")
        return found
    partitions = ask("sinfo", "--noheader", "--format=%R")
    if partitions is None:
        found.append(f"launcher=slurm: no Slurm controller answers within {CLIENT_SEC:g} s\n  see what `sinfo` says")
        return found
    known = sorted(set(partitions.split()))
    if settings.partition and not set(settings.partition.split(",")) <= set(known):
        found.append(f"launcher.partition={settings.partition}: no such partition\n  it is one of: {', '.join(known)}")
    return found


def _reserved(settings: SlurmConfig) -> Iterator[str]:
    for name in settings.extra:
        if name.replace("_", "-").lstrip("-") in _RESERVED:
            yield f"launcher.extra.{name}: this option of sbatch is set by the launcher itself\n  leave it out"


def _too_short(settings: SlurmConfig, cells: list[Config]) -> Iterator[str]:
    """A trial must fit into one job: only finished trials are carried over a requeue."""
    for cell in cells:
        agent, verifier = agent_hours(cell) or 0.0, verifier_hours(cell) or 0.0
        needed = agent + verifier + settings.signal_delay_sec / 3600
        if needed > settings.time_hours:
            enough = math.ceil(needed * 100) / 100
            yield (
                f"launcher.time_hours={settings.time_hours:g}: too short for one trial, which may take {agent:g} h "
                f"(agent) + {verifier:g} h (verifier)\n  type launcher.time_hours={enough:g} or more"
            )


# --- Submission ---------------------------------------------------------------------------------------


def submit(
    sweep: Path, folders: list[Path], settings: SlurmConfig, environment: dict[str, str]
) -> Iterator[tuple[Path, str]]:
    """Submit one task a folder, in arrays of the size that the cluster allows; yields each folder with its job's id.

    Raises UsageError with what sbatch said; the arrays submitted before that run.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = SlurmExecutor(folder=sweep / ".submitit", max_num_timeout=settings.max_requeues)
    size = min(settings.max_array_size or math.inf, max_array_size())
    after: dict[str, str] = {}
    for some in itertools.batched(folders, int(size)):
        executor.update_parameters(**_parameters(settings, environment), **after)
        try:
            with executor.batch():
                submitted = [executor.submit(job.CellJob(folder, settings.max_requeues)) for folder in some]
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise UsageError(f"sbatch refused {len(some)} cells: {str(error).strip()[-500:]}") from error
        yield from ((folder, one.job_id) for folder, one in zip(some, submitted, strict=True))
        if settings.array_parallelism:
            # The cap holds within an array only: the next one waits for its end, so that it holds for the sweep.
            after = {"dependency": f"afterany:{submitted[0].job_id.partition('_')[0]}"}


def _parameters(settings: SlurmConfig, environment: dict[str, str]) -> dict[str, Any]:
    """The parameters of submitit's executor."""
    named = ("partition", "account", "qos", "gres", "cpus_per_task")
    given = {name: value for name in named if (value := getattr(settings, name)) is not None}
    if settings.mem_gb is not None:
        given["mem"] = f"{math.ceil(settings.mem_gb * 1024)}M"
    if settings.cpus_per_task is not None:
        given["srun_args"] = [f"--cpus-per-task={settings.cpus_per_task}"]  # since 22.05 srun does not take it over
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return given | {
        "job_name": "ptb",
        "time": math.ceil(settings.time_hours * 60),
        "signal_delay_s": settings.signal_delay_sec,
        "array_parallelism": settings.array_parallelism or 1_000_000,
        "setup": [*exports, *settings.setup],
        "additional_parameters": {"requeue": True} | settings.extra,
    }
