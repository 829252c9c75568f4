#!/usr/bin/env python3
"""Scores a model on the benchmark described by benchmark.json, and writes metrics.json.

    python3 evaluate.py --model-path final_model --limit 50 --json-output-file metrics.json

The model is served with vLLM on this machine, or, with --base-url, by any OpenAI-compatible server. --limit N takes the
first N items, -1 all. What is written:

    {"accuracy": 0.5, "stderr": 0.05, "n": 100, "details": {"total": 100, "completed": 100, "errored": 0, ...}}

accuracy is from 0 to 1, stderr its standard error, n the number of questions. An answer cut off at --max-tokens is
scored as it is and counted as truncated; a question that leaves no room for an answer is wrong and counted as
model_length; a sample without a score is counted as errored, and too many of them (--max-errors) make no score at all.

Exit codes: 0 scored, 1 not scored, 2 wrong usage, 3 the model cannot be loaded. No metrics are written unless it is 0.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # leaves no __pycache__ beside the files it is run from
sys.path.insert(0, str(HERE))  # `python3 -I` leaves the script's own folder out

from evaluation_code import outcome, serving  # noqa: E402
from evaluation_code.benchmark import Benchmark  # noqa: E402

EXIT_NOT_SCORED, EXIT_USAGE, EXIT_INVALID_MODEL = 1, 2, 3


def parser(benchmark: Benchmark) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=f"Score a model on {benchmark.title or benchmark.id}.")
    add = made.add_argument
    add("--model-path", required=True, help="the model's folder, or its id on the model hub")
    add("--limit", type=int, default=benchmark.limit, help="how many items, from the first; -1: all (%(default)s)")
    add("--json-output-file", type=Path, help="where to write the metrics")
    add("--templates-dir", type=Path, default=HERE / "templates", help="the chat templates, default: %(default)s")
    tokens = ("--max-tokens", "--max-new-tokens")
    add(*tokens, type=int, default=benchmark.max_tokens, help="tokens of one answer (%(default)s)")
    connections = benchmark.max_connections
    add("--max-connections", type=int, default=connections, help="questions asked at once (%(default)s)")
    memory = benchmark.gpu_memory_utilization
    add("--gpu-memory-utilization", type=float, default=memory, help="part of the GPU's memory (%(default)s)")
    add("--base-url", help="an OpenAI-compatible server to use instead of starting vLLM, such as http://host/v1")
    add("--served-model", help="the model's name on that server, default: the model path")
    add("--data", type=Path, help="a file of items in the benchmark's own format, instead of its data set")
    add("--fewshot-data", type=Path, help="a file of worked examples that goes with --data (gsm8k)")
    logs = os.environ.get("PTB_LOG_DIR")  # from the verifier
    add("--log-dir", type=Path, default=logs, help="keep logs below this folder, one folder a run (%(default)s)")
    add("--seed", type=int, help="seed of the model's sampling, default: none")
    add("--max-errors", type=float, default=benchmark.max_errors, help="part of samples without score (%(default)s)")
    add("--max-retries", type=int, default=3, help="further tries of one question (%(default)s)")
    add("--request-timeout", type=float, default=7200, help="seconds for one question, retries included (%(default)s)")
    add("--startup-timeout", type=float, default=1800, help="seconds until the model must be served (%(default)s)")
    return made


def parse(benchmark: Benchmark, arguments: list[str] | None) -> argparse.Namespace:
    """The options; exits with code 2 for those that make no sense."""
    made = parser(benchmark)
    options = made.parse_args(arguments)
    if options.limit != -1 and options.limit < 1:
        made.error("--limit must be -1 or at least 1")
    for name in ("max_tokens", "max_connections", "request_timeout", "startup_timeout"):
        if getattr(options, name) <= 0:
            made.error(f"--{name.replace('_', '-')} must be above 0")
    for name in ("gpu_memory_utilization", "max_errors"):
        if not 0 <= getattr(options, name) <= 1:
            made.error(f"--{name.replace('_', '-')} must be from 0 to 1")
    for path in (options.data, options.fewshot_data):
        if path and not path.is_file():
            made.error(f"{path} is not a file")
    if options.data is None and "file" in benchmark.data and "path" not in benchmark.data:
        options.data = HERE / benchmark.data["file"]
    return options


@contextlib.contextmanager
def log_folder(options: argparse.Namespace) -> Iterator[Path]:
    """A new folder for this run's logs; it stays only below --log-dir."""
    if options.log_dir is None:
        with tempfile.TemporaryDirectory(prefix="evaluate-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    options.log_dir.mkdir(parents=True, exist_ok=True)
    yield Path(tempfile.mkdtemp(dir=options.log_dir.absolute(), prefix=time.strftime("%Y%m%d-%H%M%S-")))


@contextlib.contextmanager
def endpoint(benchmark: Benchmark, options: argparse.Namespace, logs: Path) -> Iterator[serving.Endpoint]:
    """A server that answers: the given one, or our own for as long as the block lasts."""
    if options.base_url:
        key = os.environ.get("VLLM_API_KEY", "none")
        given = serving.Endpoint(options.base_url, options.served_model or options.model_path, key)
        serving.wait_until_served(given, options.startup_timeout)
        yield given
        return
    server = serving.ServerOptions(
        model_path=options.model_path,
        templates=options.templates_dir,
        log=logs / "vllm.log",
        gpu_memory_utilization=options.gpu_memory_utilization,
        max_model_len=benchmark.max_model_len,
        tool_parser=benchmark.tool_parser,
        startup_timeout=options.startup_timeout,
    )
    with serving.serve(server) as own:
        yield own


def evaluate(benchmark: Benchmark, options: argparse.Namespace, logs: Path) -> outcome.Metrics:
    """The model's metrics; UsageError, InvalidModel or EvaluationError when there are none."""
    # A cache outlives the model: its keys do not know the weights, and a rerun would get the old answers.
    os.environ["INSPECT_CACHE_DIR"] = str(logs / "cache")
    serving.keep_loopback_off_proxies()
    if benchmark.grader:
        from evaluation_code import judged_scoring as scoring
    else:
        from evaluation_code import inspect_scoring as scoring

    started = time.monotonic()
    score = scoring.prepare(benchmark, options, logs)  # before the server: a missing data set is noticed at once
    with endpoint(benchmark, options, logs) as server:
        served = time.monotonic()
        metrics = score(server)
    details = {
        "seconds_until_served": round(served - started, 3),
        "seconds_scoring": round(time.monotonic() - served, 3),
        "limit": options.limit,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "served_by": "given server" if options.base_url else "vllm",
        "model_family": serving.family(options.model_path),
        "versions": outcome.versions(),
        "log_dir": str(logs) if options.log_dir else None,
    }
    return replace(metrics, details=metrics.details | details)


def stopped(number: int, _frame: FrameType | None) -> None:
    raise outcome.EvaluationError(f"stopped by {signal.Signals(number).name}")  # so that the server ends, too


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, stopped)
    try:
        benchmark = Benchmark.read(HERE / "benchmark.json")
        options = parse(benchmark, arguments)
        with log_folder(options) as logs:
            metrics = evaluate(benchmark, options, logs)
        if options.json_output_file:
            metrics.write(options.json_output_file.absolute())
    except outcome.UsageError as error:
        return failed(error, EXIT_USAGE)
    except outcome.InvalidModel as error:
        return failed(error, EXIT_INVALID_MODEL)
    except outcome.EvaluationError as error:
        return failed(error, EXIT_NOT_SCORED)
    except Exception as error:
        traceback.print_exc()
        return failed(f"{type(error).__name__}: {error}", EXIT_NOT_SCORED)
    print(f"accuracy {metrics.accuracy:.4f} +- {metrics.stderr:.4f} on {metrics.n} questions")
    return 0


def failed(error: Exception | str, code: int) -> int:
    """Say why, in the last line of stderr: the verifier repeats it."""
    print(f"evaluate.py: {outcome.one_line(error)}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once: a thread that still waits for an answer would hold up sys.exit
