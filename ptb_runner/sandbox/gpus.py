"""Which GPUs a trial really had: noted beside its result by each sandbox, and held against what was asked for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from ptb_runner.cell import read_json, write_json

QUERY = "nvidia-smi --query-gpu=name --format=csv,noheader"
_FILE = "observed_gpus.json"


def note(trial_dir: Path, role: str, shown: list[str]) -> None:
    """Write down what nvidia-smi showed in the agent's or the verifier's sandbox, a name for each GPU."""
    found = read_json(trial_dir / _FILE) or {}
    write_json(trial_dir / _FILE, found | {role: shown})


def observed(trial_dir: Path) -> dict[str, list[str]]:
    """What was noted, by role; {} when nothing was."""
    found: Any = read_json(trial_dir / _FILE)
    return found if isinstance(found, dict) else {}


def summary(trial_dirs: list[Path]) -> str | None:
    """The GPUs of all trials in a few words, such as `NVIDIA H100 80GB HBM3 x1`; None when none was noted."""
    sets = Counter(
        f"{name} x{count}"
        for trial in trial_dirs
        for shown in observed(trial).values()
        for name, count in Counter(shown).items()
    )
    return ", ".join(name for name, _ in sets.most_common()) or None


def mismatches(trial_dirs: list[Path], wanted: list[str], count: int) -> list[str]:
    """Why trials cannot be compared with those on the GPUs that the benchmark names, a line for each difference."""
    reasons: Counter[str] = Counter()
    for trial in trial_dirs:
        reasons.update({reason for shown in observed(trial).values() for reason in _differences(shown, wanted, count)})
    return [f"{reason} ({number} of {len(trial_dirs)} trials)" for reason, number in reasons.items()]


def _differences(shown: list[str], wanted: list[str], count: int) -> list[str]:
    if not shown:
        return ["which GPU it ran on is not known"]
    asked = " or ".join(name.rstrip("!") for name in wanted)
    other = sorted({name for name in shown if wanted and not any(matches(one, name) for one in wanted)})
    found = [f"ran on {name}, the benchmark names {asked}" for name in other]
    return found + ([f"ran on {len(shown)} GPUs, the benchmark names {count}"] if len(shown) != count else [])


def matches(wanted: str, shown: str) -> bool:
    """Whether nvidia-smi's name of a GPU is the type that was asked for: `A100-80GB` is `NVIDIA A100-SXM4-80GB`."""
    words = {word.upper() for word in re.split(r"[^A-Za-z0-9]+", shown)}
    return all(word.upper() in words for word in re.split(r"[^A-Za-z0-9]+", wanted.rstrip("!")) if word)
