"""A cell as a Beaker experiment: a function of the cell and its launcher's configuration that asks nobody.

The job's side of it is templates/beaker/entry.sh and launch/beaker_job.py.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ptb_runner import keys
from ptb_runner.budget import agent_hours, verifier_hours
from ptb_runner.cell import Cell
from ptb_runner.config import (
    BeakerConfig,
    BeakerLauncherConfig,
    Config,
    ExternalServeConfig,
    VllmServeConfig,
)
from ptb_runner.explain import masked
from ptb_runner.launch.shipping import variables_of

if TYPE_CHECKING:
    from beaker import BeakerExperimentSpec

CODE = "/ptb/code"
"""Where a job finds the dataset with the program: entry.sh and, unless it clones it, its wheel and requirements."""
CELL = "/ptb/cell"
"""Where it finds the dataset with the cell: cell.tar."""
RESULTS = "/results"
"""What Beaker keeps of a job as its result dataset."""
FILE = "beaker.yaml"
"""The experiment as it was submitted, in the cell's folder."""
IN_JOB = "PTB_BEAKER_JOB"
"""A variable that is set in our jobs: what a cell needs of its machine is looked at there."""

_ENGINES = ("beaker", "podman")
_SPECIAL = ("PTB_", "BEAKER_")
_MODAL_KEYS = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
_TASK = "cell"


@dataclass(frozen=True)
class Source:
    """A commit that jobs clone."""

    url: str
    commit: str


@dataclass(frozen=True)
class Shipped:
    """What a job is given: datasets by id or name, the folder for results (None: only Beaker's), a commit to clone."""

    code: str
    cell: str
    results: str | None
    source: Source | None = None


def settings(config: Config) -> BeakerLauncherConfig:
    """The launcher's configuration."""
    assert isinstance(config.launcher, BeakerLauncherConfig)
    return config.launcher


def workspace(launcher: BeakerLauncherConfig) -> str:
    """The workspace, as org/name."""
    return launcher.workspace or os.environ.get("BEAKER_WORKSPACE") or "ai2/tmax"


def is_elsewhere(config: Config) -> bool:
    """Whether the cell will run in a Beaker job, and this process is none of ours."""
    return config.launcher.kind == "beaker" and IN_JOB not in os.environ


def experiment(cell: Cell, shipped: Shipped) -> BeakerExperimentSpec:
    """The experiment of one cell, with one task."""
    from beaker import BeakerDataMount, BeakerEnvVar, BeakerExperimentSpec, BeakerRetrySpec, BeakerTaskResources

    launcher, config = settings(cell.config), cell.config
    where, _, name = launcher.image.partition("://")
    plain, held = _plain_variables(cell, shipped), secrets(cell)
    variables = [BeakerEnvVar(name=name, value=value) for name, value in plain.items()]
    variables += [BeakerEnvVar(name=name, secret=secret) for name, secret in held.items()]
    datasets = [BeakerDataMount.new(CODE, beaker=shipped.code), BeakerDataMount.new(CELL, beaker=shipped.cell)]
    datasets += [BeakerDataMount.new(f"/weka/{bucket}", weka=bucket) for bucket in launcher.weka]
    spec = BeakerExperimentSpec.new(
        task_name=_TASK,
        description=f"ptb_runner cell {cell.id}: {config.benchmark.id} x {config.model.id} x {config.agent.id}",
        budget=launcher.budget,
        cluster=list(launcher.cluster),
        priority=launcher.priority.name,
        **({"docker_image": name} if where == "docker" else {"beaker_image": name}),
        command=["bash", f"{CODE}/entry.sh"],
        env_vars=variables,
        datasets=datasets,
        result_path=RESULTS,
        resources=BeakerTaskResources(
            gpu_count=launcher.gpus,
            cpu_count=launcher.cpus,
            memory=_gib(launcher.memory_gb),
            shared_memory=_gib(launcher.shared_memory_gb),
        ),
        auto_resume=launcher.auto_resume,
        min_runtime=_duration(launcher.min_runtime_hours),
        timeout=_duration(launcher.timeout_hours),
    )
    if launcher.retries:
        spec.retry = BeakerRetrySpec(allowed_task_retries=launcher.retries)
    return spec


def as_yaml(spec: BeakerExperimentSpec) -> str:
    """A specification as Beaker's own command would take it."""
    import yaml

    return yaml.safe_dump(spec.to_json(), sort_keys=False, width=120, allow_unicode=True)


def _gib(size: float | None) -> str | None:
    return None if size is None else f"{size:g}GiB"


def _duration(hours: float | None) -> str | None:
    """For the client, which takes a number without unit for nanoseconds and knows no days."""
    return None if hours is None else f"{math.ceil(hours * 3600)}s"


def _plain_variables(cell: Cell, shipped: Shipped) -> dict[str, str]:
    """The variables of a job that are no secrets."""
    launcher = settings(cell.config)
    found = {
        IN_JOB: "1",
        "PTB_CELL": cell.folder.name,
        "PTB_RESULTS": shipped.results or RESULTS,
        "PTB_SECRETS": ",".join(secrets(cell)),
    }
    if shipped.source:
        found |= {"PTB_GIT_URL": shipped.source.url, "PTB_GIT_COMMIT": shipped.source.commit}
    if cell.config.backend.kind in _ENGINES:
        found |= {"BEAKER_ALLOW_SUBCONTAINERS": "1", "BEAKER_SKIP_DOCKER_SOCKET": "1"}
    return found | dict(launcher.env)


def secrets(cell: Cell) -> dict[str, str]:
    """The Beaker secrets of a cell's job, by the variable that it gets each as."""
    return _secrets(cell.config, variables_of(cell))


def known_secrets(config: Config) -> dict[str, str]:
    """The same, as far as it is known before the cell is on disk, where what it refers to can be read."""
    return _secrets(config, keys.of_cell(config))


def _secrets(config: Config, names: list[str]) -> dict[str, str]:
    launcher = settings(config)
    wanted = [*names, *(_MODAL_KEYS if config.backend.kind == "modal" else ())]
    found = {"HF_TOKEN": launcher.hf_token_secret} if launcher.hf_token_secret else {}
    found |= {name: name for name in wanted if name not in found} | dict(launcher.beaker_secrets)
    if launcher.registry and launcher.registry_token_secret:
        found["PTB_REGISTRY_TOKEN"] = launcher.registry_token_secret
    return found


# --- What can be wrong --------------------------------------------------------------------------------


def problems(config: Config) -> Iterator[str]:
    """Faults of the configuration, each a text of one or two lines."""
    launcher = config.launcher
    if isinstance(config.backend, BeakerConfig) and not isinstance(launcher, BeakerLauncherConfig):
        yield (
            f"launcher={launcher.kind}: backend=beaker puts sandboxes into the job of launcher=beaker\n"
            f"  leave launcher={launcher.kind} out, or type backend=podman"
        )
    if isinstance(launcher, BeakerLauncherConfig):
        yield from _names(launcher)
        yield from _mounts(launcher)
        yield from _job(config, launcher)
        yield from _sandboxes(config)


_ORG_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_NAME = re.compile(r"[\w.][\w.-]*")


def _names(launcher: BeakerLauncherConfig) -> Iterator[str]:
    if not launcher.cluster:
        yield "launcher.cluster: needs a value\n  type launcher.cluster=[ai2/saturn], or several"
    named = [("cluster", one) for one in launcher.cluster] + [("budget", launcher.budget)]
    for option, name in [*named, ("workspace", workspace(launcher))]:
        if not _ORG_NAME.fullmatch(name):
            yield f"launcher.{option}={name}: not of the form ORG/NAME\n  for example ai2/{name or 'saturn'}"
    if not re.fullmatch(r"(docker|beaker)://\S+", launcher.image):
        yield (
            f"launcher.image={launcher.image}: does not say whose it is\n"
            "  type docker://NAME for a registry's, or beaker://USER/NAME for one that Beaker holds"
        )
    for name in [launcher.hf_token_secret, launcher.registry_token_secret, *launcher.beaker_secrets.values()]:
        if name is not None and (not _NAME.fullmatch(name) or masked(name) != name):
            # Not repeated: somebody may have pasted the token itself.
            yield "launcher: one secret's name is none\n  give the name of a Beaker secret, never its value"
    registry = [launcher.registry, launcher.registry_user, launcher.registry_token_secret]
    if any(registry) and not all(registry):
        yield "launcher.registry, registry_user and registry_token_secret go together\n  give all three, or none"
    for name in [*launcher.env, *launcher.beaker_secrets]:
        if name.startswith(_SPECIAL):
            yield f"launcher: the variable {name} is set by Beaker or by the launcher\n  leave it out"


def _mounts(launcher: BeakerLauncherConfig) -> Iterator[str]:
    for bucket in launcher.weka:
        if not _NAME.fullmatch(bucket):
            yield f"launcher.weka: {bucket!r} is no bucket's name\n  for example launcher.weka=[oe-adapt-default]"
    if launcher.results_dir is None:
        return
    place = PurePosixPath(os.path.normpath(launcher.results_dir))
    if not any(place.is_relative_to(f"/weka/{bucket}") for bucket in launcher.weka):
        mounts = " or ".join(f"/weka/{bucket}" for bucket in launcher.weka) or "a bucket of launcher.weka"
        yield (
            f"launcher.results_dir={launcher.results_dir}: would be lost with the job\n"
            f"  name a folder below {mounts}, or null to keep results at a job's end only"
        )


def _job(config: Config, launcher: BeakerLauncherConfig) -> Iterator[str]:
    serve, hours = config.serve, launcher.timeout_hours
    if isinstance(serve, VllmServeConfig) and serve.tp * serve.dp > launcher.gpus:
        fits = f"serve.tp={launcher.gpus // serve.dp}" if launcher.gpus >= serve.dp else "serve.dp=1"
        yield (
            f"serve.tp={serve.tp} serve.dp={serve.dp}: takes {serve.tp * serve.dp} GPUs, and launcher.gpus="
            f"{launcher.gpus} gives a job fewer\n  type {fits}, or launcher.gpus={serve.tp * serve.dp}"
        )
    if isinstance(serve, ExternalServeConfig) and _is_here(serve.base_url):
        yield f"serve.base_url={serve.base_url}: a Beaker job is on another machine\n  name one that it reaches"
    if config.agent.base_url and _is_here(config.agent.base_url):
        yield f"agent.base_url={config.agent.base_url}: a Beaker job is on another machine\n  name one that it reaches"
    longest = (agent_hours(config) or 0.0) + (verifier_hours(config) or 0.0)
    if hours is not None and longest > hours:
        yield (
            f"launcher.timeout_hours={hours:g}: too short for one trial, which may take {longest:g} h\n"
            f"  type launcher.timeout_hours={math.ceil(longest + config.benchmark.build_hours)} or more, or null"
        )
    if hours is not None and (launcher.min_runtime_hours or 0.0) > hours:
        yield (
            f"launcher.min_runtime_hours={launcher.min_runtime_hours:g}: longer than a job may last\n"
            f"  type at most launcher.timeout_hours={hours:g}"
        )
    if keys.login_file(config.agent):
        yield (
            f"agent.auth=subscription: the login of {config.agent.id} is a file of this machine\n"
            "  a Beaker job has secrets only: type agent.auth=api_key"
        )


def _sandboxes(config: Config) -> Iterator[str]:
    kind, image = config.backend.kind, getattr(config.backend, "image", None)
    if kind == "docker":
        yield "launcher=beaker: there is no Docker in a job, only podman nested in it\n  type backend=beaker"
    if image and Path(image).is_dir():
        yield f"backend.image={image}: a folder of this machine, which a Beaker job does not see\n  name an image"


def _is_here(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host == "localhost" or host.startswith("127.") or host in ("::1", "0.0.0.0")


def warnings(config: Config) -> Iterator[str]:
    """What the user should know, but may well want."""
    if not isinstance(config.launcher, BeakerLauncherConfig):
        return
    if config.launcher.results_dir is None:
        yield "launcher.results_dir=null: a preempted job begins from nothing, and results are seen when it is over"
    if config.backend.kind == "bubblewrap":
        yield "backend=bubblewrap: whether a Beaker job may make namespaces is seen when its cell starts"
    serve, gpus = config.serve, config.launcher.gpus
    if gpus and not isinstance(serve, VllmServeConfig) and not config.benchmark.gpus:
        yield f"launcher.gpus={gpus}: nothing in the job uses them: type launcher.gpus=0"
    if isinstance(serve, VllmServeConfig) and serve.tp * serve.dp < gpus:
        yield f"serve.tp={serve.tp} serve.dp={serve.dp}: leaves GPUs of launcher.gpus={gpus} idle"
