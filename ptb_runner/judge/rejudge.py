"""Judge saved cells again, or for the first time: nothing of the agent's or the verifier's work is touched."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from ptb_runner import cell as cells
from ptb_runner import harbor_job, parity, redact
from ptb_runner.cell import Cell
from ptb_runner.config import JudgesConfig
from ptb_runner.explain import UsageError, explain, find, nearest, unknown_key
from ptb_runner.judge import codex, judgements, panel, prompts
from ptb_runner.outcome import JUDGED, Outcome, trial_record
from ptb_runner.overrides import as_meant
from ptb_runner.paths import CONF
from ptb_runner.result import rescore

log = logging.getLogger(__name__)


def rejudge(
    cell: Cell, judges: list[str], *, only_missing: bool, other: JudgesConfig | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Have judges look at every trial of a cell, and return its new result.

    `judges` names those of its panel, or of `other`, settings that the cell takes over; [] is all of them. Verdicts
    that are there stay, the new ones are reruns. Raises UsageError before anything is spent.
    """
    with cells.locked(cell.folder):
        chosen = check(cell, judges, other)
        rescore(cell)  # refuses a cell without a result
        if other is not None:
            kept = cell.config.judge.panel | {name: other.panel[name] for name in chosen}
            settings = replace(
                other, panel=kept, id=other.id if len(kept) == len(other.panel) else cell.config.judge.id
            )
            cell = cells.set_judge(cell, parity.plain(settings))
        prompts.write(cell.config, cell.folder, cell.task)
        harbor_job.quiet_harbor()
        secrets = redact.redactor(cell)
        secrets.log_files()
        try:
            asyncio.run(_judge_all(cell, chosen, only_missing, secrets, tell))
        finally:  # Ctrl-C, too: what judges have said by then counts
            result = rescore(cell)
        return result


def changed(cell: Cell, overrides: list[str]) -> JudgesConfig:
    """The cell's own judges with some settings changed: judge.OPTION=VALUE. Raises UsageError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides([as_meant(text) for text in overrides])
    except HydraException as error:
        raise UsageError(explain(error, [str(CONF)])) from error
    own = OmegaConf.create({"judge": OmegaConf.structured(cell.config.judge)})
    for one in parsed:
        _set(own, one.key_or_group, one.value())
    settings: Any = OmegaConf.to_object(own.judge)
    return settings


def _set(config: DictConfig, key: str, value: Any) -> None:
    """Change a setting that there is to what it takes. Raises UsageError."""
    option = find(key)
    try:
        OmegaConf.update(config, key, value)
        fits = option is not None and not option.violated_by(value)
    except (ConfigKeyError, ConfigAttributeError):
        option, fits = None, False
    except OmegaConfBaseException:
        fits = False
    if option is None:
        raise UsageError(unknown_key(key, "command line"))
    if not fits:
        raise UsageError(f"command line: {key}: takes {option.allowed}\n  {option.help}")


def check(cell: Cell, judges: list[str], other: JudgesConfig | None) -> list[str]:
    """The judges that are meant; raises UsageError when the cell has none of that name, or they lack something."""
    settings = other or cell.config.judge
    if not settings.panel:
        raise UsageError(f"{cell.folder}: the cell has no judges\n  type ptb rejudge {cell.folder} judge=v1_1")
    for name in judges:
        if name not in settings.panel:
            guess = nearest(name, settings.panel)
            hint = f"did you mean {guess}?" if guess else f"there are: {', '.join(settings.panel)}"
            raise UsageError(f"--judges {name}: no such judge\n  {hint}")
    variable = settings.api_key_var
    if variable and not os.environ.get(variable):
        raise UsageError(f"{variable}: the judges need this variable, and it is not set\n  export {variable}=...")
    if problems := codex.machine_problems(settings):
        raise UsageError(problems[0])
    return judges or list(settings.panel)


async def _judge_all(
    cell: Cell, judges: list[str], only_missing: bool, secrets: redact.Redactor, tell: Callable[[str], None]
) -> None:
    slots = asyncio.Semaphore(cell.config.judge.concurrency)
    await asyncio.gather(
        *(_judge_one(cell, folder, judges, only_missing, secrets, slots, tell) for folder in _trials(cell))
    )


def _trials(cell: Cell) -> Iterator[Path]:
    """The folders of the trials that there is something to judge of."""
    for folder in sorted(cell.job.glob("*__*")):
        if (folder / "result.json").is_file():
            outcome = trial_record(folder, 0)["outcome"]
            if outcome in (*JUDGED, Outcome.flagged, Outcome.judge_missing):
                yield folder


async def _judge_one(
    cell: Cell,
    folder: Path,
    judges: list[str],
    only_missing: bool,
    secrets: redact.Redactor,
    slots: asyncio.Semaphore,
    tell: Callable[[str], None],
) -> None:
    wanted = judgements.missing(folder, judges) if only_missing else judges
    if not wanted:
        return
    before = trial_record(folder, 0)["outcome"]
    new = await panel.judge_trial(cell, folder.name, wanted, secrets, slots)
    record = trial_record(folder, 0)
    said = ", ".join(
        f"{judge}: {_said(one, record['judgements'][judge])}" for judge, one in zip(wanted, new, strict=True)
    )
    changed = f"; {before} -> {record['outcome']}" if before != record["outcome"] else ""
    tell(f"{folder.name}: {said}{changed}")


def _said(new: dict[str, Any], counts: dict[str, Any]) -> str:
    """What a judge says now; where that is nothing, also the earlier verdict, which goes on to count."""
    if new["verdict"] is None:
        stays = "" if counts["verdict"] is None else f", the earlier verdict stays: {_raised(counts['verdict'])}"
        return f"no verdict ({new['error']['message'][:120]}){stays}"
    return _raised(new["verdict"])


def _raised(verdict: dict[str, Any]) -> str:
    return ", ".join(name for name, value in verdict.items() if value is True) or "clean"
