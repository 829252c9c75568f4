"""One cell from the command line: prepare it, run what is missing of it, show it."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path

from omegaconf import DictConfig

from ptb_runner import cell as cells
from ptb_runner import display, launch, plan, redact, run, sweep, terminal
from ptb_runner.config import typed, without_secrets
from ptb_runner.explain import Exit, UsageError
from ptb_runner.outcome import Outcome

log = logging.getLogger(__name__)


def start(config: DictConfig, folder: Path, overrides: list[str]) -> int:
    """Prepare the cell in `folder`, then run it (or, with dry_run=true, print its plan)."""
    try:
        if config.launcher.kind in launch.IN_JOBS:
            return sweep.launch_one(config, folder, overrides)
        cell = plan.prepare(typed(config), without_secrets(config), folder, overrides)
    except UsageError as error:
        _discard_if_new(folder)
        return terminal.print_error(str(error))
    planned = plan.plan(cell)
    out = terminal.console()
    if config.dry_run:
        refusals = plan.refusals(cell)
        display.print_plan(planned, refusals, out)
        out.print(f"nothing was launched; next: ptb resume {terminal.shown(folder)}", markup=False)
        return Exit.unscored if refusals else Exit.ok
    for warning in planned.warnings:
        out.print(f"note: {warning}", markup=False)
    if cell.config.launcher.kind == "debug":
        from ptb_runner.launch.debug import debugged

        debugged(folder)
    return carry_on(folder)


def _discard_if_new(folder: Path) -> None:
    """Take back the folder of a run that was refused, unless anything is in it that we did not make."""
    if plan.is_blank(folder):
        shutil.rmtree(folder, ignore_errors=True)


def carry_on(folder: Path) -> Exit:
    """Run what is missing of a cell, with progress and a closing table."""
    cell = cells.read_cell(folder)
    secrets = redact.redactor(cell)
    out = terminal.console()
    out.print(f"cell {cell.id} in {terminal.shown(folder)}", markup=False)
    warnings.simplefilter("ignore")  # libraries' notes to their developers; logging has what matters
    interval = cell.config.progress.interval_sec
    try:
        result = run.run_cell(folder, lambda progress: display.progress(progress, interval, out))
    except UsageError:
        raise
    except run.FolderGone as error:
        terminal.print_error(str(error))
        return Exit.unscored
    except Exception as error:
        log.exception("the runner failed")
        said = secrets.text(str(error))[:500]
        where = terminal.shown(folder) / "runner.log"
        terminal.print_error(f"{type(error).__name__}: {said}\n  the whole story is in {where}")
        return Exit.unscored
    display.print_result(result, cell, terminal.shown(folder), out)
    return exit_of(folder)


def exit_of(folder: Path) -> Exit:
    """How the last run of a cell ended, by its files."""
    result = cells.read_json(folder / "result.json")
    state = (cells.read_json(folder / "status.json") or {}).get("state")
    if not result:
        return Exit.unscored
    if state == "cancelled" or any(trial["outcome"] == Outcome.cancelled for trial in result["trials"]):
        return Exit.interrupted
    return Exit.ok if result["score"]["n_scored"] == result["score"]["n_expected"] else Exit.unscored
