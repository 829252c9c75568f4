"""Scores by asking a grader: all answers first, then the verdicts, so that no GPU waits for a hosted model twice."""

import argparse
import random
from collections.abc import Callable
from pathlib import Path

from evaluation_code import answers, arena_writing, healthbench, items
from evaluation_code.benchmark import Benchmark
from evaluation_code.grader import Grader, NoVerdict
from evaluation_code.outcome import Metrics, UsageError, check_missing
from evaluation_code.serving import Endpoint

TASKS = {"arena_writing": arena_writing, "healthbench": healthbench}
ORDER = 42  # one order of the items for everybody, so that --limit takes a fair sample
MAX_ERRORS_LISTED = 5


def prepare(benchmark: Benchmark, options: argparse.Namespace, logs: Path) -> Callable[[Endpoint], Metrics]:
    """Load the items and find the grader's key; what is returned scores a model. UsageError, EvaluationError."""
    if benchmark.task not in TASKS or benchmark.grader is None:
        raise UsageError(f"benchmark.json: needs a grader and one of the tasks {', '.join(TASKS)}")
    task, grader = TASKS[benchmark.task], Grader(benchmark.grader)
    rows = items.load(benchmark, options.data, logs)
    if benchmark.data.get("subset") == "easy" and not options.data:
        rows = [row for row in rows if healthbench.is_easy(row)]
    random.Random(ORDER).shuffle(rows)
    rows = rows if options.limit == -1 else rows[: options.limit]
    conversations = [task.conversation(row) for row in rows]

    def score(endpoint: Endpoint) -> Metrics:
        given = answers.ask_all(endpoint, conversations, options)
        errors = [str(answer.error) for answer in given if answer.stop == "error"]
        check_missing(errors, len(errors), len(rows), options.max_errors)
        answered = [number for number, answer in enumerate(given) if answer.stop != "error"]
        judged = task.judge(grader, [rows[number] for number in answered], [given[number] for number in answered])
        done = [one for one in judged if not isinstance(one, NoVerdict)]
        errors += [str(one) for one in judged if isinstance(one, NoVerdict)]
        check_missing(errors, len(rows) - len(done), len(rows), options.max_errors)
        mean, spread, more = task.summary(done)
        details = {
            "total": len(rows),
            "completed": len(done),
            "errored": len(rows) - len(done),
            **answers.counts(given),
            **more,
            "errors": errors[:MAX_ERRORS_LISTED],
            "grader": {"model": grader.settings.model, **grader.counts},
        }
        return Metrics(mean, spread, len(done), details)

    return score
