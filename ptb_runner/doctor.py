"""What a machine needs to run cells, checked one by one."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ptb_runner import backend, launch, serve
from ptb_runner.backend import podman
from ptb_runner.config import Config, register, typed
from ptb_runner.explain import UsageError, explain
from ptb_runner.judge import codex, codex_program
from ptb_runner.launch import beaker_spec
from ptb_runner.overrides import as_meant
from ptb_runner.paths import CONF

LITTLE_DISK_GB = 2.0


@dataclass(frozen=True)
class Check:
    """One thing looked at; `text` says what was found, or for a failure what to do."""

    name: str
    failed: bool
    text: str


def checks(overrides: list[str]) -> Iterator[Check]:
    """Everything the composed cell needs of this machine, in the order in which it would be needed."""
    config = compose(overrides)
    yield Check("python", False, f"{platform.python_version()}, ptb-runner {version('ptb-runner')}")
    yield Check("harbor", False, version("harbor"))
    yield _disk(Path.cwd())
    if beaker_spec.is_elsewhere(config):  # the rest is looked at in the job
        yield from (Check(*found) for found in launch.checks(config))
        return
    yield from (Check(*found) for found in backend.of(config).checks(config))
    yield from (Check(*found) for found in launch.checks(config))
    yield from (Check(*found) for found in serve.checks(config))
    yield from _judges(config)
    yield from _keys(config)


def fix(overrides: list[str]) -> tuple[str, list[Check]]:
    """Make what this machine lacks, as far as that can be done: commands for a shell, and what was done and found."""
    config = compose(overrides)
    if config.backend.kind != "podman":
        hint = "backend=podman is the one that needs a machine set up"
        raise UsageError(f"ptb doctor --fix: there is nothing to set up for backend={config.backend.kind}\n  {hint}")
    setup = podman.set_up(config)  # whose service goes on, for the shell that takes the exports
    return setup.commands, [Check(*found) for found in (*setup.steps, *podman.checks(config))]


def compose(overrides: list[str]) -> Config:
    """The configuration that some overrides give, without running anything. Raises UsageError."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return typed(hydra_compose("config", [as_meant(override) for override in overrides]))
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(explain(error, [str(CONF)])) from error


def compose_all(overrides: list[str]) -> list[Config]:
    """The configurations of all combinations that some overrides give, as `-m` would run them. Raises UsageError."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from ptb_runner.expand import expand

    try:
        return [
            compose(cell)
            for cell in expand([as_meant(one) for one in overrides], OmegaConf.create({"zip": [], "file": None}))
        ]
    except HydraException as error:
        raise UsageError(explain(error, [str(CONF)])) from error


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free / 1e9
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return Check("disk", True, f"{folder} cannot be written to ({error.strerror}): stand elsewhere")
    return Check("disk", free < LITTLE_DISK_GB, f"{free:.1f} GB free for results in {folder}")


def _judges(config: Config) -> Iterator[Check]:
    if codex.wanted(config.judge):
        problems = codex.machine_problems(config.judge)
        yield from (Check("judge", True, ": ".join(map(str.strip, one.splitlines()))) for one in problems)
        if not problems:
            program = codex_program.find(config.judge.codex)
            yield Check("judge", False, f"codex {program.version} in {program.folder}")


def _keys(config: Config) -> Iterator[Check]:
    from ptb_runner import keys

    yield from (Check("key", False, f"{name} is there") for name, found in keys.found(config).items() if found)
    for problem in keys.missing(config):
        yield Check("key", True, ": ".join(line.strip() for line in problem.splitlines()))
