"""A cell as a Harbor job: its configuration, the plan of its trials, and the job's own files."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner import backend, keys, paths, reward, serve
from ptb_runner.agent import clis
from ptb_runner.budget import agent_hours, verifier_hours
from ptb_runner.cell import Cell, read_json, write_json
from ptb_runner.config import Config, Kind
from ptb_runner.redact import Redactor

if TYPE_CHECKING:
    from harbor.job_plan import JobPlan
    from harbor.models.job.config import JobConfig
    from harbor.models.trial.config import TrialConfig

# Options of a benchmark that stand for those of a task that is run as it is.
RESOURCES = ("cpus", "memory_mb", "storage_mb", "gpus")


def quiet_harbor() -> None:
    """Keep Harbor off the network and the console. Its exit otherwise takes 14 s and reports to a third party."""
    os.environ["HARBOR_TELEMETRY"] = "0"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    logging.getLogger("harbor").setLevel(logging.INFO)
    for chatty in ("httpx", "httpx2"):  # a line for each request of a judge
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)  # several lines for each request of Terminus 2


def planned(cell: Cell) -> JobPlan:
    """The plan, outside of the loop that handles signals: of many attempts it takes long, and Ctrl-C must end it."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(plan(cell))
    finally:
        loop.close()


async def trial_configs(cell: Cell) -> list[TrialConfig]:
    """Harbor's configuration of each trial of a cell, as a run would start it."""
    return (await plan(cell)).trial_configs


async def plan(cell: Cell) -> JobPlan:
    """Harbor's plan of the job, with trials named by us and a hand-off folder each."""
    from harbor.job_plan import JobPlan
    from harbor.models.job.lock import build_job_lock
    from harbor.models.trial.config import EnvironmentConfig

    config = _job_config(cell)
    # Harbor plans one attempt, in a thread that no signal ends; the others are the same but for the name.
    plan = await JobPlan.from_config(config.model_copy(update={"n_attempts": 1}), job_id=_job_id(cell))
    plan.config = config
    trials, attempts, short = [], Counter[Path](), _short_names(cell)
    for trial in plan.trial_configs * config.n_attempts:
        folder = trial.task.path
        assert folder is not None
        attempts[folder] += 1
        own: dict[str, Any] = {"trial_name": f"{short[folder]}__{attempts[folder]:03d}"}
        if len(short) > 1:  # compose tasks of a dataset need another environment than the rest
            own["environment"] = EnvironmentConfig.model_validate(_environment(cell, folder))
        trials.append(_with_handoff(cell, trial.model_copy(update=own, deep=True)))
    plan.trial_configs = trials
    plan.job_lock = build_job_lock(
        config=config, trial_configs=trials, task_download_results=plan.task_download_results
    )
    return plan


def _short_names(cell: Cell) -> dict[Path, str]:
    """What trials are named after, by task folder: a dataset's task, else the benchmark; fit for a folder."""
    own = cell.config.benchmark
    if cell.tasks == [cell.task]:
        return {cell.task: _short(Path(own.path).resolve().name if own.path else own.id)}
    names: dict[Path, str] = {}
    for folder in cell.tasks:
        name = _short(folder.name)
        digest = hashlib.sha256(folder.name.encode()).hexdigest()[:6]
        names[folder] = f"{name[:33]}-{digest}" if name in names.values() else name
    return names


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "task"


def _job_id(cell: Cell) -> Any:
    """The id of the job that is already there, so that a resumed job stays the same job."""
    from uuid import UUID, uuid4

    known = read_json(cell.job / "result.json")
    return UUID(known["id"]) if isinstance(known, dict) and "id" in known else uuid4()


def _job_config(cell: Cell) -> JobConfig:
    from harbor.models.job.config import JobConfig

    config = cell.config
    return JobConfig.model_validate(
        {
            "job_name": "job",
            "jobs_dir": cell.folder,
            "n_attempts": config.attempts,
            "n_concurrent_trials": config.concurrency,
            "quiet": True,
            "environment": _environment(cell, cell.tasks[0]),
            "agents": [agent_fields(config)],
            "verifier": _verifier(config),
            "tasks": [{"path": task, "source": config.benchmark.id} for task in cell.tasks],
            **_multipliers(config),
        }
    )


def _multipliers(config: Config) -> dict[str, float | None]:
    """Harbor's factors on a task's own limits; limits of ours have theirs in them."""
    limits = config.benchmark.limits
    return {
        "timeout_multiplier": limits.multiplier,
        "agent_timeout_multiplier": limits.agent_multiplier if agent_hours(config) is None else 1.0,
        "verifier_timeout_multiplier": limits.verifier_multiplier if verifier_hours(config) is None else 1.0,
        "agent_setup_timeout_multiplier": limits.agent_setup_multiplier,
        "environment_build_timeout_multiplier": limits.build_multiplier,
    }


def _environment(cell: Cell, task: Path) -> dict[str, Any]:
    own = cell.config.benchmark
    environment = backend.of(cell.config).environment(cell.config, task)
    if not own.layers:  # a rendered task says it itself
        environment |= {f"override_{name}": value for name in RESOURCES if (value := getattr(own, name))}
    if own.layers and (cell.task / "tools").is_dir():
        # Programs that run beside the agent but are not the agent's to change.
        tools = {"type": "bind", "source": str(cell.task / "tools"), "target": "/opt/ptb", "read_only": True}
        environment["mounts"] = [tools]
    return environment


def agent_fields(config: Config) -> dict[str, Any]:
    """The agent as Harbor's AgentConfig has it."""
    agent = config.agent
    hours = agent_hours(config)
    own: dict[str, Any] = {
        "name": agent.name if agent.name not in clis.CLASSES else None,
        "import_path": clis.CLASSES.get(agent.name or "", agent.import_path),
        "model_name": serve.agent_model(config),
        **clis.endpoint(agent),
        "override_timeout_sec": hours * 3600 if hours is not None else None,
        # Without a version Harbor takes the image's CLI, or installs the newest.
        "kwargs": _acp_cache(agent.name)
        | dict(agent.options)
        | ({"version": agent.version} if agent.version not in (None, "latest") else {})
        | ({"login_file": str(file)} if (file := keys.login_file(agent)) else {})
        | ({"first_answer_min": agent.first_answer_min} if agent.name in clis.CLASSES else {})
        | _reprompt(config),
        # Harbor resolves ${NAME} on the host when the trial starts; the value is in no file.
        "env": dict(agent.env) | {name: f"${{{name}}}" for name in keys.of_agent(agent)},
    }
    return own


def _acp_cache(name: str | None) -> dict[str, str]:
    """Where Harbor keeps what it looks up of an ACP agent; by itself, in the folder one stands in."""
    is_acp = name == "acp" or (name or "").startswith("acp:")
    return {"registry_cache_dir": str(paths.cache() / "acp-registry")} if is_acp else {}


def _reprompt(config: Config) -> dict[str, Any]:
    wanted, hours = config.agent.reprompt, agent_hours(config)
    if wanted.min_remaining_min is None or hours is None:
        return {}
    return {"reprompt": {"budget_sec": hours * 3600, **dataclasses.asdict(wanted)}}


def _verifier(config: Config) -> dict[str, Any]:
    hours = verifier_hours(config)
    return {
        "override_timeout_sec": hours * 3600 if hours is not None else None,
        "env": {name: f"${{{name}}}" for name in config.benchmark.verifier_env_vars},
    }


def _with_handoff(cell: Cell, trial: TrialConfig) -> TrialConfig:
    if cell.config.benchmark.kind is Kind.post_train:
        trial.environment.kwargs["handoff"] = backend.of(cell.config).handoff(cell, trial.trial_name)
    return trial


def write_job(cell: Cell, plan: JobPlan, secrets: Redactor) -> None:
    """Harbor's own files of the job, from its own models, so that its readers and viewer accept the folder."""
    from harbor.models.trial.result import TrialResult
    from pydantic import ValidationError

    cell.job.mkdir(exist_ok=True)
    results = []
    for config in plan.trial_configs:
        try:
            results.append(TrialResult.model_validate_json((cell.job / config.trial_name / "result.json").read_text()))
        except (OSError, ValidationError):
            continue  # not there yet, or never begun: Harbor has no form for it
    job = plan.aggregate(results, n_total_trials=len(plan.trial_configs))
    if len(results) < len(plan.trial_configs):
        job.finished_at = None
    if cell.config.benchmark.reward and reward.chosen(cell.job) is None:
        write_json(cell.job / reward.FILE, {"reward": cell.config.benchmark.reward})
    (cell.job / "config.json").write_text(secrets.text(plan.config.model_dump_json(indent=4)))
    (cell.job / "lock.json").write_text(secrets.text(plan.job_lock.model_dump_json(indent=4, exclude_none=True)))
    (cell.job / "result.json").write_text(job.model_dump_json(indent=4, exclude={"trial_results"}))
