"""The six benchmarks that inspect-ai scores: exact scores from a scripted model, and what can go wrong on the way."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from evaluation_kit import Evaluator, Ran, example, write_items

from tests.fakes.model_server import serving

pytestmark = pytest.mark.inspect

OVERFLOW = {"status": 400, "message": "This model's maximum context length is 100 tokens. ANSWER: 11"}


class Scored:
    """One evaluation of a benchmark, with the model's log."""

    def __init__(self, evaluator: Evaluator, items: Path, rules: list[dict[str, Any]], *arguments: object) -> None:
        with serving(rules) as server:
            options = ("--model-path", "m", "--base-url", server.url, "--data", items, "--limit", "-1")
            self.ran: Ran = evaluator.run(*options, *arguments)
            self.log = server.log


@pytest.fixture
def score(tmp_path, new_pair):
    def run(name: str, rows: list[dict], rules: list[dict], *arguments: object, python: Path | None = None, **changes):
        folder = tmp_path / f"environment_{len(list(tmp_path.iterdir()))}"
        evaluator = Evaluator(folder, example(name) | changes, python or new_pair)
        return Scored(evaluator, write_items(tmp_path / "items.jsonl", rows), rules, *arguments)

    return run


def error_of(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


# GSM8K.

SUMS = [
    {"question": "Ann has 2 pens and buys 3.", "answer": "2+3=<<2+3=5>>5\n#### 5"},
    {"question": "A hall has 10 rows of 100.", "answer": "It is\n#### 1,000"},
    {"question": "Bob cuts 5 in half.", "answer": "Half\n#### 2.5"},
    {"question": "Cat runs 3 and 4.", "answer": "So\n#### 7"},
    {"question": "Dan eats 4 and 4.", "answer": "So\n#### 8"},
    {"question": "Eve has 11.", "answer": "So\n#### 11"},
    {"question": "Fox has 6.", "answer": "So\n#### 6"},
    {"question": "Gus owes 9.", "answer": "So\n#### 9"},
]
SUM_RULES = [
    {"match": "Ann has", "say": "2+3\nANSWER: 5"},
    {"match": "A hall", "say": "ANSWER: $1,000"},
    {"match": "Bob cuts", "say": "ANSWER: 12.5"},  # ends like the right one
    {"match": "Cat runs", "say": "ANSWER: 8"},
    {"match": "Dan eats", "say": "It is 8, and then", "finish": "length"},
    {"match": "Eve has", **OVERFLOW},  # the server's complaint holds the right number
    {"match": "Fox has", "say": ""},
    {"match": "Gus owes", "say": "ANSWER: 9"},
]


def test_gsm8k(score):
    scored = score("gsm8k", SUMS, SUM_RULES)
    metrics = scored.ran.metrics
    assert metrics["accuracy"] == 4 / 8  # Ann, hall, Dan (cut off, but the last number is right), Gus
    assert math.isclose(metrics["stderr"], error_of([1, 1, 0, 0, 1, 0, 0, 1]))
    assert metrics["n"] == 8
    details = metrics["details"]
    counts = {name: details[name] for name in ("total", "completed", "errored", "truncated", "model_length")}
    assert counts == {"total": 8, "completed": 8, "errored": 0, "truncated": 1, "model_length": 1}
    assert details["versions"] | {"openai": "", "vllm": ""} == {
        "inspect-ai": "0.3.285",
        "inspect-evals": "0.26.0",
        "openai": "",
        "vllm": "",
    }
    assert {(body["max_tokens"], body.get("temperature"), body["model"]) for body in scored.log} == {(4000, None, "m")}


def test_gsm8k_shows_worked_examples(score, tmp_path):
    shown = write_items(tmp_path / "train.jsonl", [{"question": "Zoe has 1.", "answer": "One.\n#### 1"}])
    scored = score("gsm8k", SUMS[:1], SUM_RULES, "--fewshot-data", shown)
    assert scored.ran.metrics["accuracy"] == 1
    assert scored.log[0]["messages"][0]["role"] == "system"
    assert scored.log[0]["messages"][0]["content"] == "Zoe has 1.\n\nReasoning:\nOne.\n\nANSWER: 1"


def test_a_limit_takes_the_first_items_and_epochs_ask_again(score):
    scored = score("gsm8k", SUMS, SUM_RULES, "--limit", "3", "--seed", "7", "--max-tokens", "99", epochs=2)
    metrics = scored.ran.metrics
    assert (metrics["accuracy"], metrics["n"], metrics["details"]["total"]) == (2 / 3, 3, 6)
    assert math.isclose(metrics["stderr"], error_of([1, 1, 0]))
    assert {(body["seed"], body["max_tokens"]) for body in scored.log} == {(7, 99)}
    assert len(scored.log) == 6


# HumanEval.

CODE = [
    {
        "task_id": f"Own/{number}",
        "prompt": f'def {name}(a):\n    """Give a plus one."""\n',
        "canonical_solution": "    return a + 1\n",
        "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(-1) == 0\n",
        "entry_point": name,
    }
    for number, name in enumerate(["body", "fenced", "wrong", "exits", "lazy", "equal", "broken"])
]
CODE_RULES = [
    {"match": "def body", "say": "    return a + 1"},
    {"match": "def fenced", "say": "Here:\n```python\ndef fenced(a):\n    return a + 1\n```\nDone."},
    {"match": "def wrong", "say": "    return a + 2"},
    {"match": "def exits", "say": "    return a + 2\n\nimport sys\nsys.exit(0)"},
    {"match": "def lazy", "say": "    import os\n    os._exit(0)"},
    {
        "match": "def equal",
        "say": "    class Same:\n        def __eq__(self, other):\n            return True\n    return Same()",
    },
    {"match": "def broken", "say": "    return ("},
]


def test_humaneval(score):
    metrics = score("humaneval", CODE, CODE_RULES).ran.metrics
    assert metrics["accuracy"] == 2 / 7
    assert metrics["n"] == 7


# AIME.

PROBLEMS = [
    {"id": "1", "problem": "Find x.", "answer": "70"},
    {"id": "2", "problem": "Find y.", "answer": 33},
    {"id": "3", "problem": "Find z.", "answer": "5"},
]
PROBLEM_RULES = [
    {"match": "Find x.", "say": "So\n$$\n\\boxed{70}\n$$"},
    {"match": "Find y.", "say": "ANSWER: 33"},
    {"match": "Find z.", "say": "ANSWER: 25"},
]


@pytest.mark.parametrize("year", [2025, 2026])
def test_aime(score, year):
    metrics = score(f"aime{year}", PROBLEMS, PROBLEM_RULES).ran.metrics
    assert (metrics["accuracy"], metrics["n"]) == (2 / 3, 3)


# GPQA.

QUESTIONS = [
    {
        "Record ID": f"rec{number}",
        "Question": f"Which one is {name}?",
        "Correct Answer": f"the true {name}",
        "Incorrect Answer 1": f"{name} one",
        "Incorrect Answer 2": f"{name} two",
        "Incorrect Answer 3": f"{name} three",
        "High-level domain": "Physics",
        "Subdomain": "Optics",
    }
    for number, name in enumerate(["red", "green", "blue", "grey"])
]


def choose(text: str) -> list[dict]:
    """Rules that pick the choice with this text, wherever it is shown."""
    return [{"match": f"{letter}) {text}\n", "say": f"Because.\n\nANSWER: {letter}"} for letter in "ABCD"] + [
        {"match": f"{letter}) {text}", "say": f"ANSWER: {letter}"} for letter in "ABCD"
    ]


def test_gpqa(score):
    rules = [*choose("the true red"), *choose("green two"), *choose("the true blue")]
    scored = score("gpqamain", QUESTIONS, rules)
    assert (scored.ran.metrics["accuracy"], scored.ran.metrics["n"]) == (2 / 4, 4)
    orders = {tuple(line[3:] for line in text.splitlines() if line[1:3] == ") ") for text in prompts(scored.log)}
    assert len({order.index(next(one for one in order if "true" in one)) for order in orders}) > 1  # shuffled


def prompts(log: list[dict]) -> list[str]:
    return [body["messages"][-1]["content"] for body in log]


# BFCL.

ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {
        "type": "dict",
        "properties": {"a": {"type": "integer", "description": "x"}, "b": {"type": "float", "description": "y"}},
        "required": ["a", "b"],
    },
}
CALLS = [
    {
        "id": f"exec_simple_{number}",
        "question": [[{"role": "user", "content": f"{name}: add 1 and 2.5"}]],
        "function": [ADD],
        "ground_truth": ["add(a=1, b=2.5)"],
        "execution_result_type": ["exact_match"],
    }
    for number, name in enumerate(["Right", "Wrong", "Silent", "Other"])
]
CALL_RULES = [
    {"match": "Right", "call": ["add", {"a": 1, "b": 2.5}]},
    {"match": "Wrong", "call": ["add", {"a": 1, "b": 2}]},
    {"match": "Silent", "say": "add(a=1, b=2.5)"},
    {"match": "Other", "call": ["subtract", {"a": 1, "b": 2.5}]},
]


def test_bfcl(score):
    scored = score("bfcl", CALLS, CALL_RULES)
    assert (scored.ran.metrics["accuracy"], scored.ran.metrics["n"]) == (1 / 4, 4)
    assert scored.log[0]["tools"][0]["function"]["name"] == "add"


# What goes wrong.

BROKEN = {"match": "Cat runs", "status": 422, "message": "no grammar"}


def test_a_sample_that_fails_is_no_score(score):
    ran = score("gsm8k", SUMS, [BROKEN, *SUM_RULES]).ran
    assert ran.code == 1
    assert "have no score" in ran.reason
    assert "no grammar" in ran.reason


def test_a_bounded_part_may_fail_and_is_neither_zero_nor_silent(score):
    metrics = score("gsm8k", SUMS, [BROKEN, *SUM_RULES], "--max-errors", "0.2").ran.metrics
    assert (metrics["accuracy"], metrics["n"]) == (4 / 7, 7)
    assert (metrics["details"]["completed"], metrics["details"]["errored"]) == (7, 1)
    assert "no grammar" in metrics["details"]["errors"][0]


def test_all_samples_failing_is_never_a_score(score):
    ran = score("gsm8k", SUMS[:2], [{"match": "", "status": 422}], "--max-errors", "1").ran
    assert ran.code == 1
    assert "2 of 2 samples" in ran.reason


def test_a_server_in_trouble_is_retried_but_not_for_ever(score):
    passing = [{"match": "Ann has", "status": 500, "times": 1}, *SUM_RULES]
    assert score("gsm8k", SUMS[:1], passing).ran.metrics["accuracy"] == 1
    lasting = score("gsm8k", SUMS[:1], [{"match": "", "status": 500}], "--max-retries", "1")
    assert lasting.ran.code == 1
    assert len(lasting.log) == 6  # two tries of inspect-ai, three each of the client


def test_another_models_answers_are_not_remembered(score, tmp_path):
    for say, accuracy in (("ANSWER: 5", 1), ("ANSWER: 6", 0)):
        scored = score("gsm8k", SUMS[:1], [{"match": "", "say": say}])
        assert scored.ran.metrics["accuracy"] == accuracy
        assert len(scored.log) == 1


def test_without_the_hub_it_says_so_at_once(tmp_path, new_pair):
    for name in ("gpqamain", "gsm8k"):
        started = time.monotonic()
        with serving([]) as server:
            evaluator = Evaluator(tmp_path / name, example(name), new_pair)
            ran = evaluator.run("--model-path", "m", "--base-url", server.url, HF_HUB_OFFLINE="1")
        assert ran.code == 1
        assert "data cannot be loaded" in ran.reason
        assert time.monotonic() - started < 30


@pytest.mark.parametrize("name", ["gsm8k", "bfcl"])
def test_items_in_another_format_are_wrong_usage(score, name):
    ran = score(name, [{"text": "?"}], []).ran
    assert ran.code == 2
    assert "items.jsonl" in ran.reason


def test_an_unknown_task_is_wrong_usage(score):
    assert "no task 'gsm9k'" in score("gsm8k", SUMS, [], task="gsm9k").ran.reason


def test_logs_stay_where_they_are_wanted(score, tmp_path):
    logs = tmp_path / "logs"
    scored = score("gsm8k", SUMS[:1], SUM_RULES, "--log-dir", logs)
    [folder] = logs.iterdir()
    assert scored.ran.metrics["details"]["log_dir"] == str(folder)
    [log] = (folder / "inspect").glob("*.json")
    assert json.loads(log.read_text())["status"] == "success"


# The old pair, which PostTrainBench's image pins.


def test_the_old_pair_scores_gsm8k_its_own_way(score, old_pair):
    metrics = score("gsm8k", SUMS, SUM_RULES, python=old_pair).ran.metrics
    # As the new one does, but "12.5" passes for 2.5.
    assert (metrics["accuracy"], metrics["n"]) == (5 / 8, 8)
    assert metrics["details"]["model_length"] == 1
    assert metrics["details"]["versions"]["inspect-ai"] == "0.3.150"
    assert metrics["details"]["versions"]["inspect-evals"] == "0.3.103"


@pytest.mark.parametrize(
    ("name", "rows", "rules", "accuracy"),
    [
        ("humaneval", CODE, CODE_RULES, 2 / 7),
        ("aime2026", PROBLEMS[1:], PROBLEM_RULES, 1.0),  # "25" ends like 5
        ("gpqamain", QUESTIONS, [*choose("the true red"), *choose("green two")], 1 / 4),
        ("bfcl", CALLS, CALL_RULES, 1 / 4),
    ],
)
def test_the_old_pair_runs_the_others(score, old_pair, name, rows, rules, accuracy):
    assert score(name, rows, rules, python=old_pair).ran.metrics["accuracy"] == accuracy
