"""Where the runner process lives: a class of options for each launcher."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from ptb_runner.config.declare import option


class OnInterrupt(Enum):
    """What Ctrl-C does to jobs that run elsewhere."""

    leave = "leave"
    cancel = "cancel"


class CodeFrom(Enum):
    """How the program reaches a job elsewhere."""

    wheel = "wheel"
    git = "git"


class BeakerPriority(Enum):
    """How urgent a Beaker job is."""

    low = "low"
    normal = "normal"
    high = "high"
    urgent = "urgent"
    immediate = "immediate"


@dataclass
class LauncherConfig:
    """Where a cell's runner process lives."""

    kind: str = option(MISSING, "Which launcher.", result=False)


@dataclass
class InlineConfig(LauncherConfig):
    """In the process that was started."""

    kind: str = option("inline", "Which launcher.", result=False)
    max_cells: int = option(4, "Cells of a sweep that run at once.", least=1, result=False)
    max_trials: int | None = option(
        None, "Trials that run at once over all cells of a sweep; null: no such limit.", least=1, result=False
    )


@dataclass
class DebugConfig(LauncherConfig):
    """In the process that was started, one cell after another, with a debugger at the first error of the runner."""

    kind: str = option("debug", "Which launcher.", result=False)


@dataclass
class JobsConfig(LauncherConfig):
    """In jobs that outlive the process which started them."""

    wait: bool = option(True, "Wait until all cells are over; false returns at once.", result=False)
    on_interrupt: OnInterrupt = option(
        OnInterrupt.leave, "What Ctrl-C does to the cells: leave them running, or cancel them.", result=False
    )


@dataclass
class SubmititLocalConfig(JobsConfig):
    """In background processes on this machine, one a cell."""

    kind: str = option("submitit_local", "Which launcher.", result=False)
    max_cells: int = option(2, "Cells of a sweep that run at once.", least=1, result=False)


@dataclass
class SlurmConfig(JobsConfig):
    """In Slurm jobs, one array task a cell."""

    kind: str = option("slurm", "Which launcher.", result=False)
    partition: str | None = option(None, "Partition; null: the cluster's default.", result=False)
    account: str | None = option(None, "Account to charge; null: the user's default.", result=False)
    qos: str | None = option(None, "Quality of service; null: the default.", result=False)
    gres: str | None = option(None, "Generic resources of a job, such as gpu:1.", result=False)
    cpus_per_task: int | None = option(None, "CPU cores of a job; null: the cluster's default.", least=1, result=False)
    mem_gb: float | None = option(None, "Memory of a job (GiB); null: the cluster's default.", above=0, result=False)
    time_hours: float = option(
        24.0, "Time limit of a job (hours); a cell that needs longer is requeued.", above=0, result=False
    )
    array_parallelism: int | None = option(None, "Cells that run at once; null: no limit.", least=1, result=False)
    max_array_size: int | None = option(None, "Cells in one array; null: ask the cluster.", least=1, result=False)
    max_requeues: int = option(3, "Times a job is requeued when its time is up.", least=0, result=False)
    extra: dict[str, str] = option({}, "Further options of sbatch, such as constraint: a100.", result=False)
    setup: list[str] = option([], "Shell lines run in the job before the cell.", result=False)
    signal_delay_sec: int = option(
        120, "Time to stop cleanly before the time limit ends the job (seconds).", least=1, result=False
    )
    poll_sec: float = option(10.0, "Seconds between questions to the cluster.", above=0, result=False)


@dataclass
class ModalLauncherConfig(JobsConfig):
    """In Modal functions, one call a cell: the machine that starts them may go to sleep."""

    kind: str = option("modal", "Which launcher.", result=False)
    cpus: float = option(1.0, "CPU cores of a runner; sandboxes have their own.", above=0, result=False)
    memory_mb: int = option(2048, "Memory of a runner (MiB).", least=256, result=False)
    max_cells: int | None = option(None, "Cells of a sweep that run at once; null: all of them.", least=1, result=False)
    timeout_hours: float = option(24.0, "Time that a cell may take (hours).", above=0.5, most=24, result=False)
    secrets: list[str] = option(
        [], "Names of secrets that Modal holds, with keys that are not set on this machine.", result=False
    )
    sync_sec: float = option(15.0, "Seconds between copies of the results to their volume.", above=0, result=False)
    poll_sec: float = option(10.0, "Seconds between questions to Modal.", above=0, result=False)


@dataclass
class BeakerLauncherConfig(JobsConfig):
    """In Beaker jobs, one experiment a cell, one group a sweep."""

    kind: str = option("beaker", "Which launcher.", result=False)
    workspace: str | None = option(None, "Workspace, as org/name; null: BEAKER_WORKSPACE, else ai2/tmax.", result=False)
    cluster: list[str] = option(["ai2/saturn"], "Clusters in any of which a job may run.", result=False)
    budget: str = option("ai2/oe-adapt", "Budget to charge.", result=False)
    priority: BeakerPriority = option(BeakerPriority.high, "How urgent a job is.", result=False)
    image: str = option(
        "docker://nvidia/cuda:12.8.1-devel-ubuntu24.04",
        "Image of a job: docker://NAME, or beaker://NAME for one that Beaker holds.",
        result=False,
    )
    gpus: int = option(8, "GPUs of a job, for the model that it serves.", least=0, result=False)
    port: int = option(8008, "Port at which that model is served.", least=1, most=65535, result=False)
    cpus: float | None = option(None, "CPU cores of a job; null: the cluster's default.", above=0, result=False)
    memory_gb: float | None = option(None, "Memory of a job (GiB); null: the cluster's default.", above=0, result=False)
    shared_memory_gb: float = option(64.0, "Shared memory of a job (GiB).", above=0, result=False)
    weka: list[str] = option(["oe-adapt-default"], "Weka buckets, each mounted in a job at /weka/BUCKET.", result=False)
    results_dir: str | None = option(
        "/weka/oe-adapt-default/ptb_runner",
        "Folder below a bucket, to which a job copies results while it runs and from which it goes on after a "
        "preemption; null: results are kept at the job's end only.",
        result=False,
    )
    sync_sec: float = option(30.0, "Seconds between copies of the results to results_dir.", above=0, result=False)
    timeout_hours: float | None = option(24.0, "Time limit of a job (hours); null: none.", above=0, result=False)
    min_runtime_hours: float | None = option(
        None, "Hours during which a job is not preempted; null: the cluster's default.", above=0, result=False
    )
    auto_resume: bool = option(True, "Begin a preempted job anew: it goes on with what it had.", result=False)
    retries: int = option(0, "Times a failed job is begun anew.", least=0, result=False)
    code: CodeFrom = option(
        CodeFrom.wheel,
        "How the program reaches a job: wheel (as it is here), or git (a job clones its commit, which must be pushed).",
        result=False,
    )
    git_url: str | None = option(
        None, "Repository that a job clones with code=git; null: that of the checkout's remote origin.", result=False
    )
    hf_token_secret: str | None = option(
        "HF_TOKEN", "Beaker secret that a job gets as HF_TOKEN; null: none.", result=False
    )
    registry: str | None = option(None, "Host of an image registry that a job logs in to; null: none.", result=False)
    registry_user: str | None = option(None, "User name there.", result=False)
    registry_token_secret: str | None = option(None, "Beaker secret with that user's token.", result=False)
    beaker_secrets: dict[str, str] = option(
        {},
        "Beaker secrets by the variable that a job gets each as; a variable that a cell needs and that is not here is "
        "the secret of its own name.",
        result=False,
    )
    write_secrets: bool = option(
        False, "Write the secrets that the workspace lacks, from the variables that are set here.", result=False
    )
    env: dict[str, str] = option({}, "Settings for a job's environment, such as HF_HOME; no secrets.", result=False)
    poll_sec: float = option(15.0, "Seconds between questions to Beaker.", above=0, result=False)
    answer_sec: float = option(60.0, "Seconds within which Beaker must answer a question.", above=0, result=False)


LAUNCHERS: dict[str, type[LauncherConfig]] = {
    "inline": InlineConfig,
    "debug": DebugConfig,
    "submitit_local": SubmititLocalConfig,
    "slurm": SlurmConfig,
    "modal": ModalLauncherConfig,
    "beaker": BeakerLauncherConfig,
}
