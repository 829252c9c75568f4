"""Have the verifier score again what agents left, without the agents: a hand-off that was kept, or saved artifacts.

Harbor runs such a trial in regrading/. Only when its result is whole does it take the place of the first one, which
then moves to superseded/: whatever becomes of a regrade, at any moment there is a finished trial in job/.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner import backend, harbor_job, redact, run, trial_folders
from ptb_runner import cell as cells
from ptb_runner.cell import Cell, read_json, write_json
from ptb_runner.config import Kind
from ptb_runner.explain import UsageError
from ptb_runner.interrupts import Interrupts
from ptb_runner.judge import judgements
from ptb_runner.outcome import JUDGED, Outcome, trial_record
from ptb_runner.result import rescore

if TYPE_CHECKING:
    from harbor.models.trial.config import TrialConfig

log = logging.getLogger(__name__)

# What Harbor does not take over from the trial that is graded again: how long the agent's part took.
_TIMES = ("environment_setup", "agent_setup", "agent_execution", "started_at")


def check(found: list[Cell], outcomes: list[str]) -> None:
    """Raise UsageError when the verifier would find nothing at all of what is meant in these cells."""
    left = [_chosen(cell, outcomes) for cell in found]
    if any(gone for _, gone in left) and not any(names for names, _ in left):
        names = ", ".join([name for _, gone in left for name in gone][:5])
        raise UsageError(
            f"{found[0].folder}: the models of {names} were not kept "
            f"(backend.keep_model={found[0].config.backend.keep_model.name})\n"
            "  only what is in handoff/ can be graded again"
        )


def regrade(cell: Cell, outcomes: list[str], tell: Callable[[str], None]) -> tuple[dict[str, Any], bool]:
    """Grade the trials of a cell again, those with these outcomes ([]: all with something to grade).

    Returns the new result, and whether each trial could be graded.
    """
    with cells.locked(cell.folder):
        cells.check_unchanged(cell)
        rescore(cell)  # refuses a cell without a result
        names, gone = _chosen(cell, outcomes)
        for name in gone:
            tell(f"{name}: its model was not kept, its result stays")
        harbor_job.quiet_harbor()
        secrets = redact.redactor(cell)
        secrets.log_files()
        try:
            done = asyncio.run(_regrade_all(cell, names, secrets, tell)) and not gone
        finally:  # Ctrl-C, too: what was graded by then counts
            result = rescore(cell)
        return result, done


def _chosen(cell: Cell, outcomes: list[str]) -> tuple[list[str], list[str]]:
    """The trials that are meant: those of which there is something to grade, and those whose model was not kept."""
    wanted = outcomes or (*(JUDGED - {Outcome.no_model}), Outcome.flagged, Outcome.judge_missing)
    folders = [folder for folder in sorted(cell.job.glob("*__*")) if (folder / "result.json").is_file()]
    meant = [folder.name for folder in folders if trial_record(folder, 0)["outcome"] in wanted]
    if cell.config.benchmark.kind is not Kind.post_train:
        return meant, []
    kept = [name for name in meant if backend.of(cell.config).has_handoff(cell, name)]
    return kept, [name for name in meant if name not in kept]


async def _regrade_all(cell: Cell, names: list[str], secrets: redact.Redactor, tell: Callable[[str], None]) -> bool:
    trials = {config.trial_name: config for config in await harbor_job.trial_configs(cell)}
    slots = asyncio.Semaphore(cell.config.concurrency)
    with Interrupts(backend.of(cell.config).kill_all).handled() as interrupts:
        run.reap(cell)
        tasks = [interrupts.start(_regrade_one(cell, trials[name], secrets, slots, tell)) for name in names]
        done = await asyncio.gather(*tasks, return_exceptions=True)
    if interrupts.seen:
        raise KeyboardInterrupt
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return all(done)


async def _regrade_one(
    cell: Cell, config: TrialConfig, secrets: redact.Redactor, slots: asyncio.Semaphore, tell: Callable[[str], None]
) -> bool:
    from harbor.models.trial.config import SourceTrialConfig

    name = config.trial_name
    old, new = cell.job / name, cell.regrading / name
    config.trials_dir = cell.regrading
    config.source_trial = SourceTrialConfig.model_validate({"action": "regrade", "type": "local", "path": old})
    async with slots:
        before = trial_record(old, 0)
        after = await run.run_once(cell, config, secrets, lambda phase: log.info("%s: %s", name, phase))
        if after["outcome"] in (Outcome.infra_error, Outcome.cancelled):
            trial_folders.supersede(cell, new)
            tell(f"{name}: could not be graded again, its result stays: {after['error']['message'][:300]}")
            return False
        _take_over(new, old)
        _replace(cell, new, old)
        after = trial_record(old, 0)
        tell(f"{name}: {_told(before)} -> {_told(after)}")
        return True


def _take_over(new: Path, old: Path) -> None:
    """What the first trial knows and the new one cannot: times of the agent's part, verdicts on its work."""
    result, before = read_json(new / "result.json"), read_json(old / "result.json")
    write_json(new / "result.json", result | {name: before.get(name) for name in _TIMES})
    if (old / judgements.FOLDER).is_dir():
        shutil.copytree(old / judgements.FOLDER, new / judgements.FOLDER)


def _replace(cell: Cell, new: Path, old: Path) -> None:
    """Put the new trial in the place of the old one; Harbor's files of it name the places where both are then."""
    moves = {
        str(old): str(trial_folders.superseded(cell, old.name)),
        str(new): str(old),
        new.as_uri(): old.as_uri(),
        str(cell.regrading): str(cell.job),
    }
    for path in (new / "config.json", new / "lock.json", new / "result.json"):
        write_json(path, _moved(read_json(path), moves))
    trial_folders.supersede(cell, old)
    new.rename(old)  # killed between these two, `trial_folders.end_regrades` does it


def _moved(value: Any, moves: dict[str, str]) -> Any:
    """A JSON value in which some texts are others."""
    if isinstance(value, dict):
        return {key: _moved(one, moves) for key, one in value.items()}
    if isinstance(value, list):
        return [_moved(one, moves) for one in value]
    return moves.get(value, value) if isinstance(value, str) else value


def _told(record: dict[str, Any]) -> str:
    return record["outcome"] if record["reward"] is None else f"{record['outcome']} {record['reward']:.4f}"
