"""Every option of the program: its name, type, unit, bounds and meaning, in one place.

The dataclasses below are the schema that Hydra checks each file of conf/ and each override against.
`option()` adds what a type cannot say: the meaning, the bounds, and whether the option is part of a
cell's identity (``result=True``: another value could give another score) or not.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, ListConfig, Node, OmegaConf


def option(
    default: Any,
    help: str,
    *,
    result: bool = True,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> Any:
    """Declare one option.

    `least` and `most` are inclusive bounds, `above` an exclusive one. `result` says whether the option
    can change a score and so belongs to a cell's identity.
    """
    metadata = {"help": help, "result": result, "least": least, "above": above, "most": most}
    if isinstance(default, list | dict) or dataclasses.is_dataclass(default):
        make = default if isinstance(default, type) else lambda: copy.deepcopy(default)
        return field(default_factory=make, metadata=metadata)
    return field(default=default, metadata=metadata)


class Kind(Enum):
    """What a benchmark asks of the agent."""

    post_train = "post_train"
    harbor = "harbor"


class Network(Enum):
    """What a sandbox can reach."""

    public = "public"
    none = "none"


class MissingScore(Enum):
    """What a trial counts as when the agent left nothing that can be scored."""

    base_model = "base_model"
    nothing = "nothing"


class ContentKind(Enum):
    """Where a benchmark's prompt and evaluation come from."""

    builtin = "builtin"
    upstream = "upstream"


class KeepModel(Enum):
    """Which trained models stay in the cell's folder."""

    never = "never"
    scored = "scored"
    always = "always"


class PodmanNetwork(Enum):
    """What a podman container's public network is."""

    own = "own"
    host = "host"


class JudgeEffect(Enum):
    """What a judge's yes does."""

    flag = "flag"
    review = "review"


class JudgeApi(Enum):
    """Which form of the OpenAI API a judge is asked through."""

    responses = "responses"
    chat = "chat"


class JudgeEngine(Enum):
    """What a judge is made of."""

    api = "api"
    codex = "codex"


class Auth(Enum):
    """How an agent pays for its LLM."""

    api_key = "api_key"
    subscription = "subscription"


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


class OnInterrupt(Enum):
    """What Ctrl-C does to jobs that run elsewhere."""

    leave = "leave"
    cancel = "cancel"


@dataclass
class TryConfig:
    """A rung of the evaluation's ladder: so many tries with the same arguments."""

    count: int = option(1, "Tries with these arguments.", least=1)
    args: list[str] = option([], "Extra arguments of evaluate.py.")
    timeout_hours: float | None = option(None, "Hours that each may take; null: try_timeout_hours.", above=0)


@dataclass
class GraderConfig:
    """The LLM that grades answers, where a benchmark is scored by one; what it leaves open, evaluate.py knows."""

    model: str | None = option(None, "The grader's name at its API; null: the benchmark needs no grader.")
    base_url: str | None = option(None, "Its OpenAI-compatible API; null: OPENAI_BASE_URL, else OpenAI's.")
    reasoning_effort: str | None = option(None, "How hard it thinks; null: its own default.")
    workers: int = option(64, "Judgements under way at once.", least=1)
    retries: int = option(5, "Further tries of a judgement that failed.", least=0)


@dataclass
class EvaluationConfig:
    """How `final_model` is scored (kind post_train): what evaluate.py reads, and how often it is tried."""

    limit: int = option(-1, "Items of the benchmark to score; -1 for all.", least=-1)
    tries: list[TryConfig] = option([], "Tries, each {count, args, timeout_hours}, until one scores; empty: one.")
    try_timeout_hours: float = option(1.0, "Hours that one try may take.", above=0)
    task: str | None = option(None, "What evaluate.py runs: module:function of inspect_evals, or one of its own.")
    task_args: dict[str, Any] = option({}, "Arguments of a task of inspect_evals.")
    data: dict[str, Any] = option({}, "Where the items are, if the task does not know (path, name, split, file ...).")
    quick_limit: int = option(-1, "Items that suffice for a quick try, the agent's default; -1: all.", least=-1)
    max_tokens: int = option(4096, "Tokens of an answer.", least=1)
    max_model_len: int | None = option(None, "Tokens of question and answer; null: the model's own limit.", least=1)
    max_connections: int = option(8, "Questions to the model at once.", least=1)
    gpu_memory_utilization: float = option(0.8, "Share of the GPU's memory for serving.", above=0, most=1)
    tool_parser: str | None = option(None, "How the server reads tool calls, such as hermes; null: no tools.")
    epochs: int = option(1, "Times that each item is asked.", least=1)
    max_errors: float = option(0.0, "Share of items that may go without a score.", least=0, most=1)
    grader: GraderConfig = option(GraderConfig, "The LLM that grades answers.")


@dataclass
class HeldOutConfig:
    """Where `ptb cache test-data` finds a benchmark's test items, for the check against contamination."""

    source: str | None = option(None, "Data set on the model hub, or a format such as json.", result=False)
    name: str | None = option(None, "Part of the data set.", result=False)
    split: str = option("test", "Split that is scored.", result=False)
    files: list[str] = option([], "Data files, where `source` is a format.", result=False)
    question: str = option("question", "Field that holds the question.", result=False)
    answer: str | None = option("answer", "Field that holds the answer; null: none.", result=False)


@dataclass
class SnapshotConfig:
    """What is kept of the agent's workspace as evidence."""

    max_file_mb: int = option(512, "Larger files are left out and listed (MiB).", least=1, result=False)
    max_total_mb: int = option(2048, "Room for the whole snapshot (MiB).", least=1, result=False)


@dataclass
class PhaseLimitsConfig:
    """Limits of the phases of a trial (kind harbor): exact ones in seconds, or factors on the task's own."""

    agent_sec: float | None = option(None, "Seconds that the agent has; null: the task's own.", above=0)
    agent_multiplier: float | None = option(None, "Factor on the agent's limit.", above=0)
    agent_setup_multiplier: float | None = option(None, "Factor on the limit of installing the agent.", above=0)
    verifier_sec: float | None = option(None, "Seconds that the verifier has; null: the task's own.", above=0)
    verifier_multiplier: float | None = option(None, "Factor on the verifier's limit.", above=0)
    build_multiplier: float | None = option(None, "Factor on the limit of starting a sandbox.", above=0)
    multiplier: float = option(1.0, "Factor on every limit that has none of its own.", above=0)


@dataclass
class BenchmarkConfig:
    """A benchmark: the task that is rendered, its limits and its score policy."""

    id: str = option(MISSING, "Name in results and folders.")
    title: str = option("", "Name in prompts and tables; empty: the id.")
    kind: Kind = option(MISSING, "post_train: train a model, then score it; harbor: a Harbor task as it is.")
    layers: list[str] = option([], "Folders of templates/ (or absolute paths) laid over each other into the task.")
    shared: list[str] = option([], "Files of environment/ that tests/ gets its own copy of.")
    path: str | None = option(None, "A Harbor task folder, or a folder of such, to run as it is (kind harbor).")
    dataset: str | None = option(None, "A Harbor dataset, NAME@VERSION, to run as it is (kind harbor).")
    registry_path: str | None = option(None, "The dataset's registry: a JSON file of Harbor's form.", result=False)
    registry_url: str | None = option(None, "The same at a URL; null: Harbor's own registry.", result=False)
    include: list[str] = option([], "Names of the tasks to run, with wildcards; empty: all.")
    exclude: list[str] = option([], "Names of tasks to leave out, with wildcards.")
    n_tasks: int | None = option(None, "Tasks to run, the first so many; null: all.", least=1)
    limits: PhaseLimitsConfig = option(PhaseLimitsConfig, "Limits of the phases of a trial.")
    models: list[str] = option([], "Models that this benchmark can be run with; empty: any.")
    agent_hours: float | None = option(
        None, "Hours that the benchmark gives an agent, the default of budget.hours; null: the task's own.", above=0
    )
    verifier_hours: float | None = option(None, "Hours that the verifier has; null: the task's own.", above=0)
    build_hours: float = option(0.5, "Hours that starting a sandbox may take, image build included.", above=0)
    workdir: str = option("/app", "Folder in which the agent works, inside the sandbox.")
    network: Network = option(Network.public, "What the agent's and the verifier's sandbox can reach.")
    cpus: int | None = option(None, "CPU cores of each sandbox; null: no limit.", least=1)
    memory_mb: int | None = option(None, "Memory of each sandbox (MiB); null: no limit.", least=1)
    storage_mb: int | None = option(None, "Disk of each sandbox (MiB); null: no limit.", least=1)
    gpus: int = option(0, "GPUs of each sandbox.", least=0)
    gpu_types: list[str] = option([], "GPU models that may be used, such as H100; empty: any.")
    evaluation: EvaluationConfig = option(EvaluationConfig, "How final_model is scored.")
    snapshot: SnapshotConfig = option(SnapshotConfig, "What is kept of the workspace.", result=False)
    zero_shot: dict[str, float] = option({}, "Zero-shot score of each base model (0 to 1), by model id.")
    few_shot: dict[str, float] = option({}, "Few-shot score of each base model (0 to 1), by model id.", result=False)
    instruct: dict[str, float] = option(
        {}, "Score (0 to 1) of the official tuned sibling of each base model, by the base model's id.", result=False
    )
    weight: float | None = option(None, "Weight in a mean over benchmarks; null: in none.", least=0, result=False)
    allowed_data: list[str] = option([], "Training data that judges are told is allowed.", result=False)
    disallowed_data: list[str] = option([], "Data that judges are told must not be trained on.", result=False)
    test_data: HeldOutConfig = option(HeldOutConfig, "Where its test items are.", result=False)
    missing_score: MissingScore = option(
        MissingScore.nothing,
        "What a trial without a usable model counts as: base_model (its zero-shot score) or nothing.",
    )
    reward: str | None = option(
        None, "The reward that counts, where a verifier leaves several; null: the one called reward, or the only one."
    )
    pass_reward: float = option(1.0, "Reward from which a trial counts as passed.", result=False)
    env_vars: list[str] = option(
        [], "Names of host variables that evaluate.py needs in both sandboxes, such as a grader's key."
    )
    verifier_env_vars: list[str] = option([], "Names of host variables that the verifier alone needs.")


@dataclass
class ModelConfig:
    """The model that is post-trained (kind post_train) or served and evaluated (kind harbor), or none."""

    id: str = option(MISSING, "Name in results and folders.")
    title: str = option("", "Name in prompts; empty: the id.")
    hub_id: str | None = option(
        None, "Id on the model hub, as org/name, or (for serve=vllm) a folder; null for a model that the task brings."
    )
    revision: str | None = option(None, "Revision on the model hub.")
    hosted: bool = option(False, "Whether a provider hosts it: the agent asks it there, by model.id.")
    layers: list[str] = option([], "Folders of templates/ that bring the model's files into the task.")
    env_vars: list[str] = option([], "Names of host variables that fetching the model needs, such as HF_TOKEN.")
    identity: dict[str, Any] = option({}, "Fields of config.json that final_model must share; null: not checked.")
    chat: str | None = option(None, "Family of its chat template, such as qwen3.")


@dataclass
class RepromptConfig:
    """Whether an agent that says it is done is prompted again, within the same budget."""

    min_remaining_min: float | None = option(
        None,
        "Minutes that must be left of its hours for an agent that is done to be prompted again; null: never.",
        above=0,
    )
    max: int = option(10, "Times that it is prompted again at most.", least=1)
    pause_sec: float = option(30.0, "Wait before each further prompt (seconds).", least=0)


@dataclass
class AgentConfig:
    """The agent under test."""

    id: str = option(MISSING, "Name in results and folders.")
    name: str | None = option(None, "Harbor's name of a built-in agent.")
    import_path: str | None = option(None, "An agent class of one's own, as module:Class.")
    model: str | None = option(None, "The agent's own LLM, as provider/name.")
    base_url: str | None = option(
        None, "Where the agent reaches its LLM: an http(s) URL; null: the provider's own.", result=False
    )
    version: str | None = option(None, "Version of the agent's CLI; latest or null: the newest.")
    timeout_hours: float | None = option(None, "Hours this agent has, instead of budget.hours.", above=0)
    first_answer_min: float | None = option(
        30.0,
        "Minutes after which a CLI whose LLM has not answered at all is ended; null: never.",
        result=False,
        above=0,
    )
    reprompt: RepromptConfig = option(RepromptConfig, "Whether it is prompted again.")
    options: dict[str, Any] = option({}, "Keyword arguments of Harbor's agent class.")
    env: dict[str, str] = option({}, "Settings for the agent's environment; secrets only as ${oc.env:NAME}.")
    env_vars: list[str] = option([], "Names of host variables that the agent needs, such as its API key.")
    auth: Auth = option(
        Auth.api_key, "What the agent's LLM is paid with: api_key, or subscription (claude-code, codex).", result=False
    )


@dataclass
class BudgetConfig:
    """How much of a benchmark is run: prompt, timer, limits and metadata follow."""

    id: str = option("full", "Name in metadata.")
    hours: float | None = option(None, "Hours that the agent has; null: the benchmark's own.", above=0)
    limit: int | None = option(None, "Items that are scored, -1 for all; null: benchmark.evaluation.limit.", least=-1)


@dataclass
class ContentConfig:
    """Where a post-training benchmark's prompt and evaluation come from."""

    kind: ContentKind = option(ContentKind.builtin, "builtin: ours; upstream: those of a PostTrainBench checkout.")
    path: str | None = option(None, "A PostTrainBench checkout.", result=False)
    url: str | None = option(None, "A git repository to fetch it from instead, into a cache.", result=False)
    commit: str | None = option(None, "The commit to fetch.", result=False)


@dataclass
class PinsConfig:
    """Versions of what an image is built from."""

    image: str | None = option(None, "Image to build upon.")
    node_image: str | None = option(None, "Image to take Node from.")
    torch_backend: str | None = option(None, "Which builds of torch, such as cu128.")
    packages: dict[str, str] = option({}, "Python packages and their versions.")
    sources: dict[str, str] = option({}, "Python packages that are built from a git URL with a commit.")
    clis: dict[str, str] = option({}, "The agents' CLIs by Harbor's name of the agent: a version, or latest.")


@dataclass
class PriceConfig:
    """What an LLM costs, in dollars for a million tokens."""

    input: float | None = option(
        None,
        "A million tokens of input; null: OpenAI's list price; of other servers, no cost is told.",
        least=0,
    )
    cached: float | None = option(None, "A million tokens of input that were cached; null: as input.", least=0)
    output: float | None = option(None, "A million tokens of output, thinking included.", least=0)


@dataclass
class JudgeConfig:
    """One judge: an LLM that reads what a trial left and answers questions with yes or no."""

    prompt: str = option(MISSING, "Its prompt: a file in Jinja2, of templates/judge/ or a path.")
    fields: dict[str, str] = option({}, "Its questions: the name of each field of the verdict, and what true means.")
    effect: JudgeEffect = option(
        JudgeEffect.flag, "What a true does: flag takes the trial's reward away, review has a person decide."
    )
    model: str = option(MISSING, "The LLM.")
    effort: str | None = option(None, "How hard it thinks; null: the LLM's own default.")
    max_turns: int = option(150, "Answers of the LLM, after which it must give its verdict.", least=1)
    max_tokens: int = option(20_000_000, "Tokens in all, cached ones too, after which it must.", least=1000)
    max_context_tokens: int = option(250_000, "Tokens of a request, beyond which old files are dropped.", least=1000)
    usd_per_mtok: PriceConfig = option(PriceConfig, "What the LLM costs.")


@dataclass
class CodexConfig:
    """The Codex CLI as a judge (judge.engine=codex)."""

    version: str | None = option(None, "Its version; null: that of conf/pins/pinned.yaml.", result=False)
    path: str | None = option(
        None, "The program, where it is not to come from the cache that `ptb cache codex` fills.", result=False
    )
    max_hours: float = option(
        4.0, "Hours of one judge's work, after which it must give its verdict.", above=0, result=False
    )


@dataclass
class JudgesConfig:
    """The judges of each trial, and how they are asked."""

    id: str = option("none", "Name in the plan.", result=False)
    panel: dict[str, JudgeConfig] = option(
        {}, "The judges by id, each {prompt, fields, effect, model, effort, max_turns ...}.", result=False
    )
    engine: JudgeEngine = option(
        JudgeEngine.api,
        "What a judge is: api, an LLM with read-only tools of ours; codex, the Codex CLI in a sandbox over a copy.",
        result=False,
    )
    codex: CodexConfig = option(CodexConfig, "The Codex CLI as a judge.")
    api: JudgeApi = option(JudgeApi.responses, "The form of the API: responses, or chat (completions).", result=False)
    base_url: str | None = option(None, "An OpenAI-compatible API; null: OPENAI_BASE_URL, else OpenAI's.", result=False)
    api_key_var: str | None = option(
        "OPENAI_API_KEY", "Name of the host variable with its key, which no sandbox gets; null: none.", result=False
    )
    model: str | None = option(None, "An LLM for all judges; null: each one's own.", result=False)
    effort: str | None = option(None, "How hard all judges think; null: each one's own.", result=False)
    concurrency: int = option(4, "Judges of a cell at work at once.", least=1, result=False)
    timeout_sec: float = option(900.0, "Seconds that one answer of the LLM may take.", above=0, result=False)
    retries: int = option(8, "Further tries of a request that failed (429, 5xx, timeouts).", least=0, result=False)
    retry_wait_sec: float = option(
        2.0, "Wait before the first such try, doubled each time (seconds).", least=0, result=False
    )
    malformed_tries: int = option(3, "Verdicts without the right form that are asked for again.", least=0, result=False)


@dataclass
class ParityConfig:
    """The published runs that a cell is to match, if any."""

    id: str | None = option(None, "Name of the reference; null: none.", result=False)
    title: str = option("", "What the reference is.", result=False)
    margin: float | None = option(
        None, "Difference of scores (0 to 1) within which runs count as equivalent; null: none.", above=0, result=False
    )
    reference: dict[str, Any] = option({}, "Every setting of the reference, as a tree of options.", result=False)


@dataclass
class BackendConfig:
    """The sandboxes in which agents and verifiers run."""

    kind: str = option(MISSING, "Which kind of sandbox.")
    keep_model: KeepModel = option(
        KeepModel.scored, "Which final_model folders stay in the cell's folder: never, scored or always.", result=False
    )
    hf_cache: str | None = option(
        "auto",
        "Where sandboxes find models and data sets of the hub, read-only: a host folder (on Modal, a volume) that "
        "`ptb cache hf` fills; auto: its usual one; null: they download everything.",
        result=False,
    )
    usd_per_gpu_hour: float = option(0.0, "Price of one GPU for one hour (dollars).", least=0, result=False)


@dataclass
class BubblewrapConfig(BackendConfig):
    """Sandboxes made of Linux namespaces."""

    kind: str = option("bubblewrap", "Which kind of sandbox.")
    scratch_dir: str | None = option(None, "Where the sandboxes' files live; null: the temp folder.", result=False)
    read_only_paths: list[str] = option(
        [], "Further host folders that sandboxes may read, at their own path; programs in their bin/ are found."
    )


@dataclass
class PodmanConfig(BackendConfig):
    """Podman containers on this machine."""

    kind: str = option("podman", "Which kind of sandbox.")
    image: str | None = option(None, "Image for tasks that bring none; a folder with a Dockerfile is built.")
    pull_tries: int = option(4, "Times an image is pulled until it succeeds.", least=1, result=False)
    nested: str = option(
        "auto", "Whether podman gets a configuration for restricted machines: auto, true or false.", result=False
    )
    network: PodmanNetwork = option(
        PodmanNetwork.own, "What a public network is: podman's own, or the host's (always in a restricted machine)."
    )
    gpu_devices: list[str] = option(["nvidia.com/gpu=all"], "CDI names of the GPUs of each sandbox.")
    run_args: list[str] = option([], "Further arguments of `podman run`, such as --shm-size=8g.")
    mirrors: dict[str, str] = option(
        {}, "Mirror to ask before a registry, by the registry's host; behind http:// if it has no TLS.", result=False
    )
    logins: list[str] = option([], "Registries that podman must be logged in to.", result=False)
    helper_dir: str | None = option(None, "Folder with a netavark that fits podman, if not the system's.", result=False)
    scratch_dir: str | None = option(
        None, "Where runner and containers share files; null: the temp folder.", result=False
    )


@dataclass
class BeakerConfig(PodmanConfig):
    """Podman containers nested in the Beaker job in which the cell's runner is."""

    kind: str = option("beaker", "Which kind of sandbox.")
    nested: str = option(
        "true", "Whether podman gets a configuration for restricted machines: auto, true or false.", result=False
    )


@dataclass
class DockerConfig(BackendConfig):
    """Docker containers on this machine, by Harbor's own docker environment."""

    kind: str = option("docker", "Which kind of sandbox.")
    image: str | None = option(None, "Image for tasks that bring none.")


@dataclass
class ModalConfig(BackendConfig):
    """Modal sandboxes."""

    kind: str = option("modal", "Which kind of sandbox.")
    usd_per_gpu_hour: float = option(3.95, "Price of one GPU for one hour (dollars).", least=0, result=False)
    image: str | None = option(
        None, "Image for tasks that bring none; a folder with a Dockerfile is built; null: Python 3.12 with NumPy."
    )
    gpu: str | None = option(
        None, "GPU type, such as H200 or A100-80GB; null: the benchmark's first. H100 never becomes an H200."
    )
    region: list[str] = option([], "Regions in which sandboxes may run, such as us-east; empty: any.", result=False)
    cloud: str | None = option(None, "Cloud in which they run: aws, gcp or oci; null: any.", result=False)
    secrets: list[str] = option([], "Names of Modal secrets whose variables both sandboxes get.")
    registry_secret: str | None = option(None, "Name of a Modal secret to pull images with.", result=False)
    app: str = option("ptb-runner", "Modal app in which sandboxes are made.", result=False)
    creations_per_sec: float = option(
        4.0, "Sandboxes that a runner makes a second; Modal allows about 5.", above=0, most=5, result=False
    )
    max_sandboxes: int = option(100, "Sandboxes that your Modal plan runs at once.", least=1, result=False)
    max_gpus: int = option(10, "GPUs that your Modal plan gives at once.", least=1, result=False)


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
class SubmititLocalConfig(LauncherConfig):
    """In background processes on this machine, one a cell."""

    kind: str = option("submitit_local", "Which launcher.", result=False)
    max_cells: int = option(2, "Cells of a sweep that run at once.", least=1, result=False)
    wait: bool = option(True, "Wait until all cells are over; false returns at once.", result=False)
    on_interrupt: OnInterrupt = option(
        OnInterrupt.leave, "What Ctrl-C does to the cells: leave them running, or cancel them.", result=False
    )


@dataclass
class SlurmConfig(LauncherConfig):
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
    wait: bool = option(True, "Wait until all cells are over; false returns at once.", result=False)
    on_interrupt: OnInterrupt = option(
        OnInterrupt.leave, "What Ctrl-C does to the jobs: leave them running, or cancel them.", result=False
    )
    poll_sec: float = option(10.0, "Seconds between questions to the cluster.", above=0, result=False)


@dataclass
class ModalLauncherConfig(LauncherConfig):
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
    wait: bool = option(True, "Wait until all cells are over; false returns at once.", result=False)
    on_interrupt: OnInterrupt = option(
        OnInterrupt.leave, "What Ctrl-C does to the cells: leave them running, or cancel them.", result=False
    )
    poll_sec: float = option(10.0, "Seconds between questions to Modal.", above=0, result=False)


@dataclass
class BeakerLauncherConfig(LauncherConfig):
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
    wait: bool = option(True, "Wait until all cells are over; false returns at once.", result=False)
    on_interrupt: OnInterrupt = option(
        OnInterrupt.leave, "What Ctrl-C does to the jobs: leave them running, or cancel them.", result=False
    )
    poll_sec: float = option(15.0, "Seconds between questions to Beaker.", above=0, result=False)
    answer_sec: float = option(60.0, "Seconds within which Beaker must answer a question.", above=0, result=False)


@dataclass
class ServeConfig:
    """Who serves the model under test (kind harbor): nobody, or the agent's provider."""

    kind: str = option("none", "Who serves it: none, external or vllm.")


@dataclass
class ServedConfig(ServeConfig):
    """A server that agents are pointed at."""

    served_name: str | None = option(None, "The model's name at the server; null: from the model.")
    max_model_len: int | None = option(None, "Tokens of question and answer; null: what the server says.", least=1)
    ready_timeout_sec: float = option(
        1800.0, "Time until it answers a first completion (seconds).", above=0, result=False
    )
    health_sec: float = option(
        10.0,
        "Seconds between questions whether it is well, and for each answer; three without one: it counts as dead.",
        above=0,
        result=False,
    )


@dataclass
class ExternalServeConfig(ServedConfig):
    """A server that runs already."""

    kind: str = option("external", "Who serves it: none, external or vllm.")
    base_url: str = option(
        MISSING, "Where agents and runner reach it: an OpenAI-compatible URL, usually ending in /v1.", result=False
    )
    api_key_var: str | None = option(
        None, "Name of the host variable with its key; null: it asks for none.", result=False
    )


@dataclass
class VllmServeConfig(ServedConfig):
    """A vLLM server that is started for the cell, and ended with it."""

    kind: str = option("vllm", "Who serves it: none, external or vllm.")
    version: str = option("0.19.1", "Version of vLLM, run through uvx.")
    command: list[str] = option([], "What is run instead of `uvx vllm==VERSION serve`; gets the same arguments.")
    tokenizer_revision: str | None = option(None, "Revision of the tokenizer; null: the model's.")
    tp: int = option(1, "GPUs over which a copy of the model is split.", least=1, result=False)
    dp: int = option(1, "Copies of the model, each on GPUs of its own.", least=1, result=False)
    port: int | None = option(None, "Port it listens at; null: a free one.", least=1, most=65535, result=False)
    address: str | None = option(
        None, "Name or address by which sandboxes reach this machine; null: as the backend has it.", result=False
    )
    tool_parser: str | None = option("hermes", "How it reads tool calls; null: it takes no tools.")
    reasoning_parser: str | None = option(None, "How it tells thinking from answers; null: not at all.")
    extra_args: list[str] = option([], "Further arguments of `vllm serve`.")
    env: dict[str, str] = option({}, "Settings for its environment; secrets only as ${oc.env:NAME}.")
    max_restarts: int = option(2, "Times it is started again after it died.", least=0, result=False)


@dataclass
class SweepConfig:
    """How a command line with -m becomes cells."""

    zip: list[list[str]] = option(
        [], "Swept keys that go together instead of being combined, such as [[benchmark,model]].", result=False
    )
    file: str | None = option(None, "A file with the overrides of one cell on each line.", result=False)


@dataclass
class LimitsConfig:
    """Caps on what a sweep may spend: new cells are not started beyond them, running ones finish."""

    max_gpu_hours: float | None = option(None, "GPU-hours of a sweep; null: no cap.", above=0, result=False)
    max_usd: float | None = option(
        None, "Dollars of a sweep (LLM costs and backend.usd_per_gpu_hour); null: no cap.", above=0, result=False
    )


@dataclass
class RetryConfig:
    """What is tried again by itself."""

    infra_errors: int = option(1, "Times a trial is run again after an infrastructure error.", least=0, result=False)
    wait_sec: float = option(
        5.0, "Wait before the first such rerun, doubled each time (seconds).", least=0, result=False
    )


@dataclass
class PreflightConfig:
    """What is looked at before anything is launched, beyond what can be seen on this machine."""

    probe_keys: bool = option(
        False, "Ask the providers, by one free call a key, whether they take the keys.", result=False
    )


@dataclass
class ProgressConfig:
    """How progress is shown."""

    interval_sec: float = option(30.0, "Seconds between progress lines when not on a terminal.", above=0, result=False)
    agent_log_sec: float = option(
        10.0,
        "Seconds between looks at the log of an agent that works; 0: only when it has ended.",
        least=0,
        result=False,
    )


@dataclass
class ReportConfig:
    """What is said of results."""

    max_error_rate: float = option(
        0.1, "Share of a dataset's trials without a score above which no mean is given.", least=0, most=1, result=False
    )


@dataclass
class Config:
    """One cell: benchmark x model x agent x backend, and how it is run."""

    benchmark: BenchmarkConfig = option(MISSING, "What the agent is asked to do.")
    judge: JudgesConfig = option(JudgesConfig, "Who looks at what it did.", result=False)
    model: ModelConfig = option(MISSING, "The model to post-train, or to evaluate.")
    agent: AgentConfig = option(MISSING, "Who does it.")
    backend: BackendConfig = option(MISSING, "Where it is done.", result=False)
    budget: BudgetConfig = option(BudgetConfig, "How much of it.")
    content: ContentConfig = option(ContentConfig, "Where prompt and evaluation come from.")
    pins: PinsConfig = option(PinsConfig, "Versions of what an image is built from.")
    parity: ParityConfig = option(ParityConfig, "What it is to match.", result=False)
    launcher: LauncherConfig = option(MISSING, "Where the runner process lives.", result=False)
    serve: ServeConfig = option(ServeConfig, "Who serves the model under test.")
    attempts: int = option(1, "Trials of each task.", least=1, most=10_000)
    concurrency: int = option(4, "Trials at once.", least=1, most=10_000, result=False)
    seed: int = option(0, "Seed for the task's own programs (PTB_SEED in the sandbox).", least=0)
    dry_run: bool = option(False, "Render and check everything, print the plan, launch nothing.", result=False)
    fail_fast: bool = option(False, "Start no further cell of a sweep after one that failed.", result=False)
    sweep: SweepConfig = option(SweepConfig, "How -m becomes cells.", result=False)
    limits: LimitsConfig = option(LimitsConfig, "Caps on what a sweep may spend.", result=False)
    retry: RetryConfig = option(RetryConfig, "What is tried again.", result=False)
    report: ReportConfig = option(ReportConfig, "What is said of results.", result=False)
    preflight: PreflightConfig = option(PreflightConfig, "What is looked at before a launch.", result=False)
    progress: ProgressConfig = option(ProgressConfig, "How progress is shown.", result=False)


BACKENDS: dict[str, type[BackendConfig]] = {
    "bubblewrap": BubblewrapConfig,
    "podman": PodmanConfig,
    "docker": DockerConfig,
    "modal": ModalConfig,
    "beaker": BeakerConfig,
}
LAUNCHERS: dict[str, type[LauncherConfig]] = {
    "inline": InlineConfig,
    "debug": DebugConfig,
    "submitit_local": SubmititLocalConfig,
    "slurm": SlurmConfig,
    "modal": ModalLauncherConfig,
    "beaker": BeakerLauncherConfig,
}
SERVES: dict[str, type[ServeConfig]] = {
    "none": ServeConfig,
    "external": ExternalServeConfig,
    "vllm": VllmServeConfig,
}
GROUPS = ("benchmark", "model", "agent", "backend", "budget", "content", "pins", "judge", "launcher", "serve")


@functools.cache
def register() -> None:
    """Make the schema known to Hydra, as `schema` and `<group>/<kind>_schema`."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for group, kinds in (("backend", BACKENDS), ("launcher", LAUNCHERS), ("serve", SERVES)):
        for kind, node in kinds.items():
            store.store(group=group, name=f"{kind}_schema", node=node)


@dataclass(frozen=True)
class Option:
    """One option as found in the schema: its full key, type, default and metadata."""

    key: str
    type: Any
    default: Any
    help: str
    result: bool
    least: float | None
    above: float | None
    most: float | None

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        optional = type(None) in get_args(self.type)
        kind = next(a for a in get_args(self.type) if a is not type(None)) if optional else self.type
        if isinstance(kind, type) and issubclass(kind, Enum):
            return " | ".join(kind.__members__)
        names = {int: "a whole number", float: "a number", bool: "true | false", str: "text"}
        words = names.get(kind, "a list" if get_origin(kind) is list else "a table")
        bounds = [
            f"{word} {limit:g}"
            for word, limit in (("at least", self.least), ("above", self.above), ("at most", self.most))
            if limit is not None
        ]
        return " ".join([words, " and ".join(bounds)]).strip() + (" or null" if optional else "")

    def violated_by(self, value: Any) -> bool:
        """Whether a number lies outside the bounds."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        inside = math.isfinite(value) and (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )
        return not inside


def options(config: DictConfig | dict[str, Any] | None = None) -> tuple[Option, ...]:
    """Every option of the schema, depth first, in the order of definition.

    Backends, launchers and servers have options of their own: those of the choice made in `config`, or of all
    choices without one.
    """
    return _known_options(_kind(config, "backend"), _kind(config, "launcher"), _kind(config, "serve"))


def _kind(config: DictConfig | dict[str, Any] | None, group: str) -> str | None:
    if isinstance(config, DictConfig):
        return OmegaConf.select(config, f"{group}.kind", throw_on_missing=False)
    return (config or {}).get(group, {}).get("kind")


@functools.cache
def _known_options(backend: str | None, launcher: str | None, serve: str | None) -> tuple[Option, ...]:
    found: dict[str, Option] = {}
    hints = get_type_hints(Config)
    choices = {
        "backend": _classes(BACKENDS, backend),
        "launcher": _classes(LAUNCHERS, launcher),
        "serve": _classes(SERVES, serve),
    }
    for item in dataclasses.fields(Config):
        for cls in choices.get(item.name, [hints[item.name]]):
            for known in _options(item, cls, ""):
                found.setdefault(known.key, known)
    return tuple(found.values())


@functools.cache
def judge_options(judge: str) -> tuple[Option, ...]:
    """The options of one judge of the panel, which is a table of such."""
    hints = get_type_hints(JudgeConfig)
    prefix = f"judge.panel.{judge}."
    return tuple(one for item in dataclasses.fields(JudgeConfig) for one in _options(item, hints[item.name], prefix))


def _classes[T](kinds: dict[str, type[T]], chosen: str | None) -> list[type[T]]:
    return [kinds[chosen]] if chosen in kinds else list(kinds.values())


def _options(item: dataclasses.Field[Any], kind: Any, prefix: str) -> Iterator[Option]:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        for child in dataclasses.fields(kind):
            yield from _options(child, hints[child.name], f"{prefix}{item.name}.")
        return
    default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
    meta = {"help": "", "result": True, "least": None, "above": None, "most": None} | dict(item.metadata)
    yield Option(f"{prefix}{item.name}", kind, default, **meta)


def composed(config: DictConfig | dict[str, Any]) -> DictConfig:
    """A configuration (Hydra's, or the one in a cell.yaml) laid over the schema, which checks names and types."""
    plain: Any = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else dict(config)
    plain.pop("hydra", None)
    serve = plain.get("serve", {}).get("kind", "none")  # an old cell.yaml has none
    return OmegaConf.merge(_schema(plain["backend"]["kind"], plain["launcher"]["kind"], serve), plain)  # type: ignore[return-value]


@functools.cache
def _schema(backend: str, launcher: str, serve: str) -> DictConfig:
    schema = OmegaConf.structured(Config)
    schema.backend = BACKENDS[backend]
    schema.launcher = LAUNCHERS[launcher]
    schema.serve = SERVES[serve]
    return schema


def task_env_vars(config: Config) -> list[str]:
    """Names of the host variables that the agent's sandbox gets beside the agent's own: the task's."""
    return list(dict.fromkeys([*config.benchmark.env_vars, *config.model.env_vars]))


def typed(config: DictConfig | dict[str, Any]) -> Config:
    """The configuration as plain dataclasses, all interpolations resolved (also ${oc.env:NAME})."""
    checked = isinstance(config, DictConfig) and OmegaConf.get_type(config) is Config and "hydra" not in config
    return OmegaConf.to_object(config if checked else composed(config))  # type: ignore[return-value, arg-type]


_ENV_REFERENCE = re.compile(r"\$\{\s*oc\.env\s*:\s*([^},\s]+)")


def without_secrets(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain data, resolved except for ${oc.env:NAME}: fit to be written to disk.

    What takes such a value over from another option (${agent.env.KEY}) is not resolved either.
    """
    names = _ENV_REFERENCE.findall(json.dumps(OmegaConf.to_container(config, resolve=False), default=str))
    return _plain(config, {os.environ[name] for name in names if os.environ.get(name)})


def _plain(node: Any, secrets: set[str]) -> Any:
    if isinstance(node, DictConfig):
        return {str(key): _item(node, key, secrets) for key in node}
    if isinstance(node, ListConfig):
        return [_item(node, index, secrets) for index in range(len(node))]
    return node.name if isinstance(node, Enum) else node


def _item(parent: DictConfig | ListConfig, key: Any, secrets: set[str]) -> Any:
    child = parent._get_node(key)
    raw = child._value() if isinstance(child, Node) else None
    if not isinstance(raw, str) or "${" not in raw:
        return _plain(parent[key], secrets)
    if _ENV_REFERENCE.search(raw):
        return raw
    resolved = _plain(parent[key], secrets)
    return raw if any(secret in str(resolved) for secret in secrets) else resolved
