"""What is asked: benchmark, model, budget, content, pins, parity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from omegaconf import MISSING

from ptb_runner.config.declare import option


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
class ParityConfig:
    """The published runs that a cell is to match, if any."""

    id: str | None = option(None, "Name of the reference; null: none.", result=False)
    title: str = option("", "What the reference is.", result=False)
    margin: float | None = option(
        None, "Difference of scores (0 to 1) within which runs count as equivalent; null: none.", above=0, result=False
    )
    reference: dict[str, Any] = option({}, "Every setting of the reference, as a tree of options.", result=False)
