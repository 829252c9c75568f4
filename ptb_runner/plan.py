"""From a composed configuration to a cell that is ready to run: preflight, render, identity, and the plan to print."""

from __future__ import annotations

import inspect
import os
import shutil
import warnings as python_warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from ptb_runner import backend, check, dataset, keys, launch, parity, probe, serve
from ptb_runner.agent import arguments
from ptb_runner.budget import agent_hours, verifier_hours
from ptb_runner.cell import (
    Cell,
    check_unchanged,
    differences,
    identity_of,
    locked,
    read_cell,
    write_cell,
    write_json,
    write_status,
)
from ptb_runner.config import AgentConfig, Config, ModalLauncherConfig, typed
from ptb_runner.explain import UsageError
from ptb_runner.judge import codex, prompts
from ptb_runner.launch import beaker_spec
from ptb_runner.render import render

if TYPE_CHECKING:
    from harbor.agents.base import BaseAgent


@dataclass(frozen=True)
class Plan:
    """What running a cell takes: limits in hours, `gpu_hours` the most it can cost, keys by name only."""

    cell: Cell
    n_trials: int
    sandboxes_at_once: int
    agent_hours: float | None
    verifier_hours: float | None
    gpu_hours: float
    keys: dict[str, bool]
    warnings: list[str]


def preflight(config: Config) -> list[str]:
    """What the cell needs of this machine and does not find; nothing is created or launched."""
    if beaker_spec.is_elsewhere(config):  # its job looks at its own machine
        return [*check.backend_refusals(config), *_agent_class(config), *_task_problems(config)]
    return [
        *check.backend_refusals(config),
        *([] if _has_secrets_elsewhere(config) else keys.missing(config)),
        *_agent_class(config),
        *backend.of(config).problems(config),
        *_task_problems(config),
        *serve.machine_problems(config),
        *codex.machine_problems(config.judge),
        *(probe.refusals(config) if config.preflight.probe_keys else []),
    ]


def _has_secrets_elsewhere(config: Config) -> bool:
    """Whether Modal may have the keys; the cell's function looks for them before anything is spent."""
    launcher = config.launcher
    return isinstance(launcher, ModalLauncherConfig) and bool(launcher.secrets) and "MODAL_IS_REMOTE" not in os.environ


def _agent_class(config: Config) -> list[str]:
    """Whether Harbor knows the agent; an agent of one's own must import."""
    _before_harbor()
    from harbor.agents.base import BaseAgent
    from harbor.models.agent.name import AgentName

    agent = config.agent
    names = [name.value for name in AgentName]
    if agent.name and agent.name not in names and not agent.name.startswith("acp:"):
        return [f"agent.name={agent.name}: Harbor has no such agent\n  it has: {', '.join(sorted(names))}"]
    try:
        found = _loaded(agent)
    except (Exception, SystemExit) as error:  # a module may also end the program when it is imported
        where = "agent.import_path" if agent.import_path else "agent.name"
        return [f"{where}={agent.import_path or agent.name}: cannot be loaded: {_one_line(error)}"]
    if not issubclass(found, BaseAgent):
        return [f"agent.import_path={agent.import_path}: is no subclass of harbor.agents.base.BaseAgent"]
    if agent.base_url and not _takes_base_url(found):
        name = agent.import_path or agent.name
        return [f"agent.base_url: {name} takes none\n  leave it out, or give its class an argument base_url"]
    return arguments.problems(config, found)


def _loaded(agent: AgentConfig) -> type[BaseAgent]:
    _before_harbor()
    from harbor.agents.factory import AgentFactory
    from harbor.models.trial import config as harbors

    own = harbors.AgentConfig(name=agent.name, import_path=agent.import_path, model_name=agent.model)
    return AgentFactory.get_agent_class_from_config(own)


def _unchecked_options(config: Config) -> list[str]:
    """Options of which nobody can say whether the agent's class knows them."""
    if not config.agent.import_path:
        return []
    try:
        return list(arguments.unchecked(config, _loaded(config.agent)))
    except (Exception, SystemExit):  # it cannot be loaded, which the preflight tells
        return []


def _takes_base_url(agent: type[BaseAgent]) -> bool:
    """Whether it is an agent of Harbor's that asks an LLM, or a class whose own constructor names the argument."""
    own = [one.__init__ for one in agent.__mro__ if "__init__" in vars(one) and not one.__module__.startswith("harbor")]
    return agent.MODEL_CONNECTION is not None or any("base_url" in inspect.signature(one).parameters for one in own)


def _task_problems(config: Config) -> list[str]:
    path = Path(config.benchmark.path or "")
    # The folder may be gone, or named from elsewhere, when a cell that has its own copy of the task is resumed.
    return _unsupported(path, str(path), config) if config.benchmark.path and path.is_dir() else []


def _unsupported(task: Path, name: str, config: Config) -> list[str]:
    """Why the backend cannot run a task, and which ones can."""
    kind = config.backend.kind
    found = {
        one.name: reasons for one in dataset.folders(task) if (reasons := backend.of(config).unsupported(one, config))
    }
    if not found:
        return []
    first, reasons = next(iter(found.items()))
    if not dataset.is_dataset(config.benchmark):
        return [f"{name}: backend={kind} cannot run it: {'; '.join(reasons)}\n  {backend.others(kind)}"]
    some = f"{name}: backend={kind} cannot run {len(found)} of its tasks, such as {first}: {'; '.join(reasons)}"
    return [f"{some}\n  leave them out: benchmark.exclude=[{','.join(found)}], or {backend.others(kind)}"]


def _before_harbor() -> None:
    """Harbor and litellm read these when imported; both would go to the network otherwise."""
    os.environ.setdefault("HARBOR_TELEMETRY", "0")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def _one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def prepare(config: Config, plain: dict[str, Any], folder: Path, overrides: list[str]) -> Cell:
    """Render the cell into `folder` and write cell.yaml; a folder that holds the same cell already is taken as it is.

    `plain` is `config` as plain data without secrets (`without_secrets`).

    Raises UsageError when the folder holds another cell, with the difference, when the task is not valid, or when
    a runner is at work on the folder: a refused command changes nothing.
    """
    _refuse_foreign(folder)
    with locked(folder):
        return _prepare(config, plain, folder, overrides)


# What is in a folder before it is a cell's: Hydra's log, and what a preparation that was killed left.
_BEFORE = frozenset({"runner.log", ".runner.lock", ".task.new", ".cell.yaml.tmp"})


def is_blank(folder: Path) -> bool:
    """Whether nothing is in a folder but what a run puts there before it is a cell's."""
    return folder.is_dir() and {entry.name for entry in folder.iterdir()} <= _BEFORE


def _refuse_foreign(folder: Path) -> None:
    """Refuse somebody else's folder."""
    if not (folder / "cell.yaml").exists() and not is_blank(folder):
        raise UsageError(
            f"{folder}: is no cell's folder, and not empty\n  choose a new one, or leave out hydra.run.dir"
        )


def _prepare(config: Config, plain: dict[str, Any], folder: Path, overrides: list[str]) -> Cell:
    rendered = folder / ".task.new"
    shutil.rmtree(rendered, ignore_errors=True)
    try:
        render(config, rendered)
        for task in dataset.folders(rendered):
            _validate(task, task.relative_to(rendered).as_posix())
        if not config.dry_run and (reasons := _unsupported(rendered, "the rendered task", config)):
            raise UsageError(reasons[0])
        identity = identity_of(plain, rendered)
        if (folder / "cell.yaml").exists():
            _refuse_another(folder, identity)
        cell = write_cell(folder, config, plain, identity, overrides)
        if not cell.task.exists():  # after cell.yaml: the same command mends a cell whose preparation was killed
            rendered.rename(cell.task)
    finally:
        shutil.rmtree(rendered, ignore_errors=True)
    prompts.write(cell.config, folder, cell.task)
    if cell.config.parity.id:
        write_json(folder / "parity.json", parity.report(cell.config, cell.task))
    if not (folder / "status.json").exists():
        attempts = {"expected": cell.n_trials, "finished": 0, "running": {}, "by_outcome": {}}
        write_status(cell, "planned", None, attempts)
    return cell


def _refuse_another(folder: Path, identity: dict[str, Any]) -> None:
    """More attempts widen a cell; any other change makes it another one."""
    cell = read_cell(folder)
    before = cell.identity
    wider = identity["attempts"] >= before["attempts"]
    changed = differences(before, identity | ({"attempts": before["attempts"]} if wider else {}))
    if changed:
        raise UsageError(
            f"{folder}: holds another cell; what changed: {'; '.join(changed)[:600]}\n"
            f"  choose another folder, or carry on with the cell that is there: ptb resume {folder}"
        )
    if cell.task.exists():
        check_unchanged(cell)


def _validate(task: Path, name: str) -> None:
    """Harbor's own opinion of the task, before anything is spent."""
    _before_harbor()
    from harbor.lint.compose import ComposeLoadError
    from harbor.lint.models import LintRule
    from harbor.lint.task import lint_task
    from harbor.models.task.task import Task

    faults = {LintRule.INVALID_TASK_CONFIG, LintRule.UNKNOWN_CONFIG_FIELD, LintRule.INVALID_TASK_FILES}
    try:
        findings = lint_task(task, selected_rules=faults)
    except ComposeLoadError:
        findings = []  # it reads compose files with Docker's own plugin, which users of podman need not have
    found = [f"{_inside(finding.path, task)}: {finding.message}" for finding in findings]
    try:
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("ignore")
            Task(task)
    except (OSError, ValueError, RuntimeError) as error:
        found = found or [_one_line(error).replace(str(task), "task")]
    if found:
        which = "the task" if name == "." else f"the task {name}"
        raise UsageError(f"{which} is not valid for Harbor: {'; '.join(found[:3])}")


def _inside(path: str, task: Path) -> str:
    return path.replace(f"{task.resolve()}/", "")


def plan(cell: Cell) -> Plan:
    """What running the cell takes."""
    config = cell.config
    hours = agent_hours(config), verifier_hours(config)
    longest = sum(value or 0.0 for value in hours)
    return Plan(
        cell=cell,
        n_trials=cell.n_trials,
        sandboxes_at_once=min(config.concurrency, cell.n_trials),
        agent_hours=hours[0],
        verifier_hours=hours[1],
        gpu_hours=config.benchmark.gpus * longest * cell.n_trials,
        keys={} if beaker_spec.is_elsewhere(config) else keys.found(config),
        warnings=[
            *check.warnings(config),
            *_unchecked_options(config),
            *backend.of(config).warnings(config),
            *beaker_spec.warnings(config),
            *parity.deviations(config),
        ],
    )


def refusals(cell: Cell) -> list[str]:
    """Why a rendered cell cannot be launched on this machine, with this backend; asked by dry runs."""
    return preflight(cell.config) or task_refusals(cell)


def task_refusals(cell: Cell) -> list[str]:
    """Why the backend cannot run the rendered task, whatever the machine."""
    return _unsupported(cell.task, "the rendered task", cell.config)


def faults(config: DictConfig, conf_dirs: list[str]) -> list[str]:
    """Everything that forbids a launch: what the configuration says, then what this machine lacks.

    A dry run goes on without the latter, and its plan says what is missing.
    """
    found = check.problems(config, conf_dirs)
    if found or config.dry_run:
        return found
    cell = typed(config)
    return [*preflight(cell), *launch.problems([cell])]
