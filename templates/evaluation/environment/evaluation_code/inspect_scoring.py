"""Scores with inspect-ai: the official tasks, solvers and scorers of inspect_evals, on its data or on a local file.

Works with inspect-ai 0.3.150 + inspect-evals 0.3.103 (what PostTrainBench's image pins) and 0.3.285 + 0.26.0. Their
scores are not comparable: the old gsm8k and aime scorers take an answer that merely ends like the right one, or does
not read "1,000" as 1000. The pair is therefore part of the metrics.
"""

# pyright: reportMissingImports=false

import argparse
import importlib
import inspect
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import csv_dataset, hf_dataset, json_dataset
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, choice, match, scorer, stderr, value_to_float
from inspect_ai.solver import generate, multiple_choice, prompt_template, system_message

from evaluation_code.benchmark import Benchmark
from evaluation_code.code_check import check_in_subprocess
from evaluation_code.outcome import EvaluationError, Metrics, UsageError, check_missing, mean_and_error, one_line
from evaluation_code.serving import Endpoint

CODE_SECONDS = 30.0  # for the tests of one HumanEval answer, as in inspect_evals
CHOICE_ORDER = 42  # one order of a question's choices for everybody
MAX_ERRORS_LISTED = 5

Convert = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Items:
    """Where a task's items come from."""

    benchmark: Benchmark
    file: Path | None
    fewshot_file: Path | None

    def load(self, convert: Convert, **options: Any) -> Any:
        """The items as an inspect data set: those of the file, else of the benchmark's data set on the hub."""
        if self.file:
            return read_file(self.file, convert, **options)
        data = {name: self.benchmark.data[name] for name in ("path", "name", "revision") if name in self.benchmark.data}
        if "path" not in data:
            raise UsageError("benchmark.json: this task needs data.path, or --data")
        return hf_dataset(**data, split=self.benchmark.data.get("split", "test"), sample_fields=convert, **options)


def read_file(path: Path, convert: Convert, **options: Any) -> Any:
    """UsageError for a file whose rows are not in the benchmark's format."""
    read = csv_dataset if path.suffix == ".csv" else json_dataset
    try:
        items = read(str(path), sample_fields=convert, **options)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, AssertionError) as error:
        raise UsageError(f"{path} is not in the benchmark's format: {type(error).__name__} {error}") from None
    if not len(items):
        raise UsageError(f"{path} has no items")
    return items


# ---------------------------------------------------------------------------------------------------------------------
# Tasks. An official one loads its data inside its function: with a local file, the same parts are put together here.


def module_of(task: str) -> Any:
    """The module of "module:function"; by importlib, as the packages export functions of the same name."""
    return importlib.import_module(f"inspect_evals.{task.partition(':')[0]}")


def official(items: Items, **own: Any) -> Task:
    """The official task with its own data; arguments that the installed version does not know are left out."""
    task = items.benchmark.task
    function = getattr(module_of(task), task.partition(":")[2])
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in {**items.benchmark.task_args, **own}.items() if name in known})


def gsm8k(items: Items) -> Task:
    if not items.file:
        return official(items)
    module = module_of("gsm8k.gsm8k")
    solver = [prompt_template(module.MATH_PROMPT_TEMPLATE), generate()]
    if items.fewshot_file:
        count = items.benchmark.task_args.get("fewshot", 10)
        shown = read_file(items.fewshot_file, module.record_to_sample, shuffle=True, seed=42, limit=count)
        solver.insert(0, system_message("\n\n".join(module.sample_to_fewshot(sample) for sample in shown)))
    return Task(dataset=items.load(module.record_to_sample), solver=solver, scorer=match(numeric=True))


def aime(items: Items) -> Task:
    """Any year's AIME."""
    module = module_of("aime2025.aime2025")
    try:
        common = importlib.import_module("inspect_evals.utils.aime_common")
        solver, score = common.aime_solver, common.aime_scorer
    except ImportError:  # 0.3.103
        solver, score = module_of("aime2024.aime2024").aime2024_solver, module.aime_scorer
    return Task(dataset=items.load(module.record_to_sample), solver=solver(), scorer=score())


def aime2025(items: Items) -> Task:
    return aime(items) if items.file else official(items)


def gpqa_main(items: Items) -> Task:
    """GPQA's main set, which inspect_evals does not offer, asked like its diamond set."""
    questions = items.load(module_of("gpqa.gpqa").record_to_sample, shuffle_choices=CHOICE_ORDER)
    return Task(dataset=questions, solver=multiple_choice(cot=True), scorer=choice())


def humaneval(items: Items) -> Task:
    if not items.file:
        # "local": no sandbox is used, and the official default would look for docker.
        return official(items, scorer=passes_tests(), sandbox="local")
    convert = module_of("humaneval.humaneval").record_to_sample()
    return Task(dataset=items.load(convert), solver=generate(), scorer=passes_tests())


@scorer(metrics=[accuracy(), stderr()])
def passes_tests() -> Any:
    """The official scorer's question, asked so that an answer that just ends the program has not passed."""
    find_code = module_of("humaneval.humaneval").find_code

    async def score(state: Any, target: Any) -> Score:
        answer = find_code(state.output.completion)
        fault = await check_in_subprocess(
            prompt=state.metadata["prompt"],
            answer=answer,
            test=state.metadata["test"],
            entry_point=state.metadata["entry_point"],
            seconds=CODE_SECONDS,
        )
        return Score(value=INCORRECT if fault else CORRECT, answer=answer, explanation=fault or "passes the tests")

    return score


def bfcl(items: Items) -> Task:
    if not items.file:
        return official(items)
    module = module_of("bfcl.bfcl")
    convert = module.record_to_sample if hasattr(module, "record_to_sample") else function_call
    return Task(dataset=items.load(convert), solver=module.bfcl_solver(), scorer=module.bfcl_scorer())


def function_call(row: dict[str, Any]) -> Any:
    """A sample of inspect-evals 0.26 from one line of a BFCL file; `category` names its kind, default exec_simple."""
    record = importlib.import_module("inspect_evals.bfcl.data").BFCLRecord
    fields = {name: value for name, value in row.items() if name != "category"}
    category = row.get("category", "exec_simple")
    return module_of("bfcl.bfcl").single_turn_record_to_sample(
        record(**{"category_name": category, "turns": 1, "language": "python", **fields})
    )


TASKS: dict[str, Callable[[Items], Task]] = {
    "gsm8k.gsm8k:gsm8k": gsm8k,
    "humaneval.humaneval:humaneval": humaneval,
    "aime2025.aime2025:aime2025": aime2025,
    "aime": aime,
    "gpqa_main": gpqa_main,
    "bfcl.bfcl:bfcl": bfcl,
}


def make_task(items: Items) -> Task:
    """The benchmark's task. Any other official one is run as it is."""
    name = items.benchmark.task
    if name in TASKS:
        return TASKS[name](items)
    if ":" not in name:
        raise UsageError(f"benchmark.json: there is no task {name!r}; own ones are {', '.join(TASKS)}")
    if items.file:
        raise UsageError(f"the task {name} brings its own data; --data does not go with it")
    return official(items)


# ---------------------------------------------------------------------------------------------------------------------


def prepare(benchmark: Benchmark, options: argparse.Namespace, logs: Path) -> Callable[[Endpoint], Metrics]:
    """Load the items; what is returned scores a model on them. UsageError, EvaluationError."""
    try:
        task = make_task(Items(benchmark, options.data, options.fewshot_data))
    except UsageError:
        raise
    except Exception as error:  # the hub's, git's and the network's are of many kinds
        raise EvaluationError(f"the benchmark's data cannot be loaded: {type(error).__name__} {error}") from error
    total = len(task.dataset) if options.limit == -1 else min(options.limit, len(task.dataset))

    def score(endpoint: Endpoint) -> Metrics:
        log = run(task, benchmark, options, endpoint, logs)
        return metrics_of(log, total, benchmark.epochs, options.max_errors)

    return score


def run(task: Task, benchmark: Benchmark, options: argparse.Namespace, endpoint: Endpoint, logs: Path) -> EvalLog:
    """The log of one evaluation, whatever became of it."""
    if ":" in endpoint.model:
        raise UsageError("--served-model must not hold a colon: inspect-ai takes what follows for a LoRA adapter")
    config = GenerateConfig(
        max_tokens=options.max_tokens,
        max_connections=options.max_connections,
        max_retries=options.max_retries,  # without a number: for ever
        timeout=round(options.request_timeout),
        seed=options.seed,
    )
    # With a base_url, inspect-ai starts no server of its own.
    model = get_model(f"vllm/{endpoint.model}", base_url=endpoint.base_url, api_key=endpoint.api_key, config=config)
    arguments = {
        "model": model,
        "limit": None if options.limit == -1 else options.limit,
        "epochs": benchmark.epochs,
        "fail_on_error": options.max_errors == 0,  # otherwise they are counted below
        "display": "none",
        "log_dir": str(logs / "inspect"),
        "log_format": "json",
        "log_level": "warning",
        "score_display": False,
        "ctl_server": False,
        "max_samples": options.max_connections,
    }
    known = inspect.signature(inspect_eval).parameters
    [log] = inspect_eval(task, **{name: value for name, value in arguments.items() if name in known})
    return log


def metrics_of(log: EvalLog, total: int, epochs: int, max_errors: float) -> Metrics:
    """The metrics of a log, from its samples: its status is "success" even when every one of them failed."""
    samples = log.samples or []
    scored = [sample for sample in samples if sample.error is None and sample.scores]
    errors = [one_line(sample.error.message) for sample in samples if sample.error]
    if log.status != "success":
        errors.insert(0, one_line(log.error.message) if log.error else f"inspect's status is {log.status}")
    missing = total * epochs - len(scored)
    check_missing(errors, missing, total * epochs, max_errors)
    if log.status != "success":
        raise EvaluationError(f"the evaluation did not finish: {errors[0]}")
    by_question: dict[Any, list[float]] = defaultdict(list)
    for sample in scored:
        by_question[sample.id].append(value_of(sample))
    mean, spread = mean_and_error([statistics.fmean(values) for values in by_question.values()])
    stops = Counter(stop_reason(sample) for sample in scored)
    details = {
        "total": total * epochs,
        "completed": len(scored),
        "errored": missing,
        "truncated": stops["max_tokens"],
        "model_length": stops["model_length"],
        "epochs": epochs,
        "errors": errors[:MAX_ERRORS_LISTED],
    }
    return Metrics(mean, spread, len(by_question), details)


def value_of(sample: EvalSample) -> float:
    """A sample's score from 0 to 1. Where the prompt left no room, the server's complaint became the answer: 0."""
    if stop_reason(sample) == "model_length":
        return 0.0
    [score] = (sample.scores or {}).values()
    return float(value_to_float()(score.value))


def stop_reason(sample: EvalSample) -> str | None:
    return sample.output.stop_reason if sample.output.choices else None
