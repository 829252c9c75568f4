"""Hydra's way in for sweeps: both classes only hand over to ptb_runner.sweep, and import it when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class PtbSweeper(Sweeper):
    """Expands a command line into cells: every combination, pairs (sweep.zip), or a file of cells (sweep.file)."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from ptb_runner.expand import expand

        assert self.launcher is not None
        assert self.config is not None
        assert self.hydra_context is not None
        jobs = expand(arguments, self.config.sweep, self.hydra_context.config_loader)
        return self.launcher.launch(jobs, initial_job_idx=0)


class PtbLauncher(Launcher):
    """Checks all cells, then runs them where `launcher` says."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from ptb_runner import sweep
        from ptb_runner.cli import BeforeRun

        assert isinstance(self.hydra_context.config_loader, ConfigLoaderImpl)
        jobs = [list(cell) for cell in job_overrides]
        # Hydra drops what a sweep returns; an exit code gets through.
        raise SystemExit(sweep.launch(self.hydra_context.config_loader, self.config, jobs, BeforeRun.folders))


# Plain dictionaries: Hydra imports this file in a way in which dataclasses do not work.
for group, cls in (("hydra/sweeper", PtbSweeper), ("hydra/launcher", PtbLauncher)):
    node = {"_target_": f"hydra_plugins.ptb.{cls.__name__}"}
    ConfigStore.instance().store(group=group, name="ptb", node=node, provider="ptb_runner")
