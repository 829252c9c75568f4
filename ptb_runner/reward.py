"""Which of the rewards that a verifier left counts, where it left several: a file in the job's folder names it.

Harbor has a mean for each of several rewards and none of them all, so nobody but the user can say. Without the file
it is the one called `reward`, or the only one, as with Harbor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ptb_runner.cell import read_json, write_json
from ptb_runner.explain import UsageError

FILE = "ptb_reward.json"
USUAL = "reward"


def chosen(job: Path) -> str | None:
    """The reward that was chosen for a job's trials."""
    found = read_json(job / FILE)
    name = found.get("reward") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def choose(jobs: list[Path], name: str) -> list[Path]:
    """Choose a reward in those jobs whose trials have it, and return them. Raises UsageError when none has."""
    if not jobs:
        raise UsageError(f"--reward {name}: only for sweeps, cells and Harbor jobs, and here is none of them")
    known = {job: set(_names(job)) for job in jobs}
    having = [job for job in jobs if name in known[job]]
    if not having:
        names = sorted(set().union(*known.values()))
        raise UsageError(f"--reward {name}: no trial has such a reward\n  there are: {', '.join(names) or 'none'}")
    for job in having:
        write_json(job / FILE, {"reward": name})
    return having


def _names(job: Path) -> Iterator[str]:
    for path in job.glob("*/result.json"):
        found = read_json(path)
        verified = found.get("verifier_result") if isinstance(found, dict) else None
        yield from (verified.get("rewards") or {}) if isinstance(verified, dict) else {}
