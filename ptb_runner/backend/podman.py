"""The podman backend: containers on this machine. Compose tasks go to Harbor's own podman environment."""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptb_runner import hf_cache
from ptb_runner.backend import host_folder
from ptb_runner.backend.lifetime import lifetime_sec
from ptb_runner.cell import Cell
from ptb_runner.config import Config, PodmanConfig, PodmanNetwork
from ptb_runner.launch import beaker_spec
from ptb_runner.sandbox import podman_machine, podman_nested, podman_setup
from ptb_runner.sandbox.podman_cli import Podman

COMPOSE = "docker-compose.yaml"

handoff, make_handoff, fetch_commands = host_folder.handoff, host_folder.make_handoff, host_folder.fetch_commands
has_handoff = host_folder.has_handoff
fill_hf_cache = hf_cache.fill_host


def settle_handoff(cell: Cell, trial: str, keep: bool) -> None:
    host_folder.settle_handoff(cell, trial, keep)
    left = cell.handoff / trial
    if not keep and left.exists():
        # A container that was killed left files of its other users, whom only podman's user namespace knows.
        Podman(_variables(_backend(cell.config))).now("unshare", "rm", "-rf", str(left))


def environment(config: Config, task: Path) -> dict[str, Any]:
    backend = _backend(config)
    cached = hf_cache.section(config)
    kwargs: dict[str, Any] = {"image": _image(backend), "host_network": on_host_network(backend)}
    kwargs |= cached.pop("kwargs", {})
    if is_compose(task):
        os.environ.update(_variables(backend))  # Harbor's podman is started with this process's environment
        own = {"import_path": "ptb_runner.sandbox.podman_compose:PodmanCompose", "delete": False}
        return {**own, "kwargs": kwargs, **cached}
    kwargs |= {
        "variables": _variables(backend),
        "pull_tries": backend.pull_tries,
        "limits": not is_nested(backend),
        "gpu_devices": list(backend.gpu_devices),
        "run_args": list(backend.run_args),
        "lifetime_sec": lifetime_sec(config, task),
        **({"scratch_dir": backend.scratch_dir} if backend.scratch_dir else {}),
    }
    return {"import_path": "ptb_runner.sandbox.podman:PodmanEnvironment", "kwargs": kwargs, **cached}


def _backend(config: Config | None) -> PodmanConfig:
    return config.backend if config and isinstance(config.backend, PodmanConfig) else PodmanConfig()


def _image(backend: PodmanConfig) -> str | None:
    """A folder is named from where the user stands; trials run elsewhere."""
    return str(Path(backend.image).resolve()) if backend.image and Path(backend.image).is_dir() else backend.image


def is_nested(backend: PodmanConfig) -> bool:
    """Whether podman gets our configuration for restricted machines; not over one that the user gave it."""
    if backend.nested.lower() in ("true", "false"):
        return backend.nested.lower() == "true"
    return bool(podman_nested.restrictions()) and not podman_nested.has_foreign_conf()


def on_host_network(backend: PodmanConfig) -> bool:
    """Whether a public network of the containers is the host's."""
    return backend.network is PodmanNetwork.host or is_nested(backend)


def _variables(backend: PodmanConfig) -> dict[str, str]:
    return podman_nested.variables(
        is_nested(backend), podman_machine.version(), backend.helper_dir, dict(backend.mirrors)
    )


def is_compose(task: Path) -> bool:
    """Whether a task needs more than one container, or other things that only compose can say."""
    return (task / "environment" / COMPOSE).exists()


def problems(config: Config) -> list[str]:
    backend = _backend(config)
    needs = podman_machine.Needs(
        nested=is_nested(backend),
        own_network=not on_host_network(backend),
        gpus=bool(config.benchmark.gpus or _task_environment(config).get("gpus")),
        logins=tuple(backend.logins),
        helper_dir=backend.helper_dir,
        images=tuple(_images(config)),
    )
    if backend.nested.lower() not in ("auto", "true", "false"):
        return [f"backend.nested={backend.nested}: it is auto, true or false"]
    return podman_machine.problems(Podman(_variables(backend)), needs)


def _images(config: Config) -> Iterator[str]:
    """The images that the cell's sandboxes are made of, as far as their names are known before it is rendered."""
    names = (_task_environment(config).get("docker_image"), _image(_backend(config)))
    yield from (name for name in names if isinstance(name, str) and not Path(name).is_dir())


def _task_environment(config: Config) -> dict[str, Any]:
    """What a task folder that is run as it is says of its environment."""
    settings = Path(config.benchmark.path or "", "task.toml")
    if config.benchmark.path and settings.is_file():
        with contextlib.suppress(tomllib.TOMLDecodeError):  # which is told where the task is checked
            return tomllib.loads(settings.read_text()).get("environment", {})
    return {}


def unsupported(task: Path, config: Config) -> list[str]:
    from ptb_runner.sandbox import podman

    if is_compose(task):
        return podman_machine.compose_reasons(task, here=not beaker_spec.is_elsewhere(config))
    return podman.unsupported(task, _backend(config).image)


def warnings(config: Config) -> list[str]:
    return []


def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
    backend = _backend(config)
    faults = problems(config)
    yield from (("podman", True, fault) for fault in faults)
    if faults:
        return
    podman = Podman(_variables(backend))
    yield "podman", False, podman_machine.describe(podman)
    reasons = ", ".join(podman_nested.restrictions()) or "asked for"
    if is_nested(backend):
        yield "nested", False, f"a configuration of our own is used ({reasons}); limits on CPU and memory do not hold"
    yield "storage", False, podman_machine.storage(podman)
    yield ("container", *podman_machine.trial_run(podman, backend.image))


def set_up(config: Config) -> podman_setup.Setup:
    """Make what a restricted machine lacks for podman, as far as that can be made."""
    backend = _backend(config)
    network = not on_host_network(backend)
    return podman_setup.set_up(Podman(_variables(backend)), nested=is_nested(backend), own_network=network)


def reap(config: Config | None) -> list[str]:
    from ptb_runner.sandbox import podman_reap

    backend = _backend(config)
    scratch_dir = Path(backend.scratch_dir) if backend.scratch_dir else None
    return podman_reap.reap(Podman(_variables(backend)), scratch_dir)


def clean_images(config: Config) -> list[str]:
    """Remove the images that were built here and that nothing uses."""
    from ptb_runner.sandbox import podman_images

    return podman_images.clean(Podman(_variables(_backend(config))))


def kill_all() -> None:
    from ptb_runner.sandbox import podman_container

    podman_container.kill_all()


async def all_ended() -> None:
    """What ends here has ended when the trial has."""
