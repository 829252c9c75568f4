"""The docker backend: Harbor's own docker environment, with images kept and everything labelled."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptb_runner import hf_cache
from ptb_runner.backend import host_folder
from ptb_runner.config import Config, DockerConfig
from ptb_runner.sandbox.engine_labels import LABEL, is_dead

IMAGE_KINDS = ("Dockerfile", "docker-compose.yaml")

handoff, make_handoff = host_folder.handoff, host_folder.make_handoff
has_handoff = host_folder.has_handoff
settle_handoff, fetch_commands = host_folder.settle_handoff, host_folder.fetch_commands
fill_hf_cache = hf_cache.fill_host


def environment(config: Config, task: Path) -> dict[str, Any]:
    cached = hf_cache.section(config)
    return {
        "import_path": "ptb_runner.sandbox.podman_compose:DockerCompose",
        "delete": False,
        "kwargs": {"image": _image(config), **cached.pop("kwargs", {})},
        **cached,
    }


def _image(config: Config) -> str | None:
    return config.backend.image if isinstance(config.backend, DockerConfig) else None


def problems(config: Config) -> list[str]:
    if not shutil.which("docker"):
        return ["docker is not installed\n  install Docker Engine and its compose plugin, or choose backend=podman"]
    for command, what in ((("info",), "the Docker daemon"), (("compose", "version"), "Docker's compose plugin")):
        try:
            done = subprocess.run(["docker", *command], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired) as problem:
            return [f"{what} does not answer: {problem}\n  type `docker {' '.join(command)}`"]
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            return [f"{what} does not answer: {said}\n  start it, and type `docker {' '.join(command)}` again"]
    return []


def unsupported(task: Path, config: Config) -> list[str]:
    import tomllib

    settings = tomllib.loads((task / "task.toml").read_text())
    brings = settings.get("environment", {}).get("docker_image")
    if brings or _image(config) or any((task / "environment" / name).exists() for name in IMAGE_KINDS):
        return []
    return ["the task brings no image and no Dockerfile; give one with backend.image=NAME"]


def warnings(config: Config) -> list[str]:
    return []


def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
    faults = problems(config)
    yield from (("docker", True, fault) for fault in faults)
    if not faults:
        done = subprocess.run(["docker", "--version"], capture_output=True, text=True)
        yield "docker", False, done.stdout.strip()


def reap(config: Config | None) -> list[str]:
    """Containers whose owner is gone; those of other programs have no label of ours."""
    if not shutil.which("docker"):
        return []
    found = []
    try:
        ours = _said("ps", "--all", "--quiet", "--filter", f"label={LABEL}").split()
        form = f'{{{{.Id}}}} {{{{index .Config.Labels "{LABEL}"}}}}'
        for line in _said("inspect", "--format", form, *ours).splitlines() if ours else []:
            name, _, owner = line.partition(" ")
            removal = ["docker", "rm", "--force", "--volumes", name]
            if is_dead(owner) and subprocess.run(removal, capture_output=True, timeout=60).returncode == 0:
                found.append(f"container {name}")
    except (OSError, subprocess.TimeoutExpired):
        pass
    return found


def _said(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=30).stdout


def clean_images(config: Config) -> list[str]:
    return []  # they are Harbor's: `docker image prune` removes what nothing uses


def kill_all() -> None:
    """Harbor ends its containers itself when a trial is cancelled; what stays has no living owner and is reaped."""


async def all_ended() -> None:
    """What ends here has ended when the trial has."""
