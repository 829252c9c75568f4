"""What runners that are gone left of podman: containers, volumes and networks with our label and a dead owner."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptb_runner.sandbox import scratch
from ptb_runner.sandbox.engine_labels import LABEL, is_dead
from ptb_runner.sandbox.podman_cli import Podman


def reap(podman: Podman, scratch_dir: Path | None) -> list[str]:
    """Remove it, and say what. Nothing without the label is touched, nor what another user's podman has."""
    found = [str(folder) for folder in scratch.reap(scratch_dir)]
    try:
        for kind, listing, removal in (
            ("container", ("ps", "--all"), ("rm", "--force", "--ignore", "--volumes", "--time", "0")),
            ("volume", ("volume", "ls"), ("volume", "rm")),
            ("network", ("network", "ls"), ("network", "rm")),
        ):
            for name in _dead(podman, listing):
                if podman.now(*removal, name).returncode == 0:
                    found.append(f"{kind} {name}")
    except (OSError, subprocess.TimeoutExpired):
        pass  # no podman, or none that answers: preflight says so where it matters
    return found


def _dead(podman: Podman, listing: tuple[str, ...]) -> Iterator[str]:
    done = podman.now(*listing, "--filter", f"label={LABEL}", "--format", "json")
    for entry in json.loads(done.stdout or "[]") or []:
        labels: dict[str, Any] = entry.get("Labels") or entry.get("labels") or {}
        if is_dead(labels.get(LABEL, "")):
            names = entry.get("Names") or entry.get("Name") or entry.get("name")
            yield names[0] if isinstance(names, list) else names
