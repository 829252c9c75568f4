"""Arena-Hard writing and HealthBench: exact scores from a scripted model and a scripted grader, and what graders do."""

import copy
import hashlib
import json
import math
import sys
import types

import pytest
from evaluation_kit import Evaluator, example, run_here, write_items

from tests.fakes.model_server import serving

from evaluation_code import arena_writing, healthbench, items  # isort: skip  # pyright: ignore
from evaluation_code.benchmark import Benchmark  # isort: skip  # pyright: ignore
from evaluation_code.grader import Malformed  # isort: skip  # pyright: ignore

LETTERS = ["Alpha", "Beta", "Gamma", "Delta"]
REQUESTS = [
    {"uid": str(n), "category": "creative_writing", "prompt": f"Write {name}."} for n, name in enumerate(LETTERS)
]
ARENA = [row | {"baseline": f"Old {row['prompt']}"} for row in REQUESTS]
MODEL = [{"match": f"Write {name}.", "say": f"<think>hm</think>\nNew {name}"} for name in LETTERS]


def game(name: str, swapped: bool, verdict: str, **more: object) -> dict:
    """A grader's rule: its verdict on one question in one order."""
    first, second = f"Old Write {name}.", f"New {name}"
    if swapped:
        first, second = second, first
    shown = f"<answer_A>\n{first}\n</answer_A>\n\n<answer_B>\n{second}\n</answer_B>"
    return {"match": shown, "say": f"I compared them.\nVERDICT: {verdict}", **more}


def both(name: str, first: str, second: str) -> list[dict]:
    return [game(name, False, first), game(name, True, second)]


ALL_LOST = [rule for name in LETTERS for rule in both(name, "A>>B", "B>>A")]


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """Run a judged benchmark with a model's and a grader's script; keyword arguments change the grader's settings."""

    def run(name: str, items: list[dict], model: list[dict], judge: list[dict], *arguments: object, **grader: object):
        benchmark = example(name)
        benchmark["grader"] = benchmark["grader"] | {"retries": 2, "backoff_sec": 0.02} | grader
        with serving(model) as answers, serving(judge) as verdicts:
            benchmark["grader"]["base_url"] = verdicts.url
            monkeypatch.setenv("OPENAI_API_KEY", "test")
            data = write_items(tmp_path / "items.jsonl", items)
            options = ("--model-path", "m", "--base-url", answers.url, "--data", data, "--limit", "-1")
            return run_here(tmp_path / "environment", benchmark, *options, *arguments), verdicts.log

    return run


# Arena-Hard.


def test_the_win_rate_counts_both_orders_and_clear_verdicts_more(evaluate):
    judge = [
        *both("Alpha", "B>>A", "A>>B"),  # won clearly: 6 of 6
        *both("Beta", "B>A", "A>B"),  # won: 2 of 2
        *both("Gamma", "A=B", "A>B"),  # a draw, then a win: 1.5 of 2
        *both("Delta", "A>>B", "B>A"),  # lost clearly, then lost: 0 of 4
    ]
    ran, log = evaluate("arenahardwriting", ARENA, MODEL, judge)
    metrics = ran.metrics
    assert metrics["accuracy"] == 9.5 / 14
    rate, won, weights = 9.5 / 14, (6, 2, 1.5, 0), (6, 2, 2, 4)
    squares = sum((points - rate * weight) ** 2 for points, weight in zip(won, weights, strict=True))
    assert math.isclose(metrics["stderr"], math.sqrt(squares * 4 / 3) / 14)
    assert metrics["n"] == 4
    details = metrics["details"]
    assert (details["total"], details["completed"], details["errored"], details["order_disagreements"]) == (4, 4, 0, 1)
    assert details["grader"] == {"model": "gpt-5-mini", "calls": 8}
    assert {(body["model"], body["reasoning_effort"], body["max_completion_tokens"]) for body in log} == {
        ("gpt-5-mini", "medium", 49152)
    }
    assert "<think>" not in json.dumps(log)


def test_a_grader_that_always_prefers_one_side_makes_a_draw(evaluate):
    judge = [rule for name in LETTERS for rule in both(name, "B>A", "B>A")]
    metrics = evaluate("arenahardwriting", ARENA, MODEL, judge)[0].metrics
    assert (metrics["accuracy"], metrics["stderr"]) == (0.5, 0.0)
    assert metrics["details"]["order_disagreements"] == 4


@pytest.mark.parametrize(
    "reply",
    ["A>>B", "VERDICT: A>>>B", "VERDICT: A>>B\nVERDICT: B>>A", "VERDICT: better", "", "The verdict: A>>B"],
)
def test_only_one_clear_verdict_is_believed(reply):
    with pytest.raises(Malformed):
        arena_writing.parse(reply)


def test_a_question_whose_verdicts_stay_malformed_has_no_score(evaluate):
    spoilt = game("Alpha", False, "") | {"say": "A is better."}
    ran, _ = evaluate("arenahardwriting", ARENA, MODEL, [spoilt, *ALL_LOST])
    assert ran.code == 1
    assert "1 of 4 samples have no score" in ran.reason
    assert "malformed" in ran.reason


def test_a_malformed_verdict_is_asked_for_again(evaluate):
    spoilt = game("Alpha", False, "") | {"say": "Hm.", "times": 2}
    details = evaluate("arenahardwriting", ARENA, MODEL, [spoilt, *ALL_LOST])[0].metrics["details"]
    assert details["grader"] == {"model": "gpt-5-mini", "calls": 10, "malformed": 2, "retries": 2}


@pytest.mark.parametrize(
    "trouble",
    [{"status": 429, "headers": {"retry-after": "0.01"}}, {"status": 500}, {"status": 503}, {"sleep": 1.5}],
    ids=["429", "500", "503", "timeout"],
)
def test_passing_troubles_are_waited_for(evaluate, trouble):
    rule = game("Beta", True, "B>A") | trouble | {"times": 1}
    ran, _ = evaluate("arenahardwriting", ARENA, MODEL, [rule, *ALL_LOST], timeout_sec=0.7)
    assert ran.metrics["accuracy"] == 0
    assert ran.metrics["details"]["grader"] == {
        "model": "gpt-5-mini",
        "calls": 9,
        "transient_errors": 1,
        "retries": 1,
    }


def test_lasting_trouble_is_no_score(evaluate):
    ran, log = evaluate("arenahardwriting", ARENA, MODEL, [game("Beta", True, "A=B", status=500), *ALL_LOST])
    assert ran.code == 1
    assert "gave no verdict in 3 tries" in ran.reason
    assert len(log) == 7 + 3


def test_a_bounded_part_may_be_missing_and_is_counted(evaluate):
    judge = [game("Beta", True, "A=B", status=500), *both("Alpha", "B>>A", "A>>B"), *ALL_LOST]
    metrics = evaluate("arenahardwriting", ARENA, MODEL, judge, "--max-errors", "0.25")[0].metrics
    assert (metrics["accuracy"], metrics["n"]) == (6 / 18, 3)
    assert (metrics["details"]["completed"], metrics["details"]["errored"]) == (3, 1)
    assert "no verdict" in metrics["details"]["errors"][0]


@pytest.mark.parametrize(
    "trouble",
    [{"status": 401, "message": "bad key"}, {"status": 404}, {"status": 429, "code": "insufficient_quota"}],
    ids=["key", "model", "quota"],
)
def test_what_no_patience_helps_against_ends_it_at_once(evaluate, trouble):
    ran, log = evaluate("arenahardwriting", ARENA, MODEL, [{"match": "", **trouble}], "--max-errors", "1", workers=1)
    assert ran.code == 1
    assert "the grader refuses" in ran.reason
    assert len(log) <= 2


def test_a_grader_without_a_key_is_wrong_usage(tmp_path):
    evaluator = Evaluator(tmp_path / "environment", example("arenahardwriting"))  # as a program, as the verifier does
    data = write_items(tmp_path / "items.jsonl", ARENA)
    ran = evaluator.run("--model-path", "m", "--base-url", "http://127.0.0.1:9/v1", "--data", data, OPENAI_API_KEY="")
    assert ran.code == 2
    assert "OPENAI_API_KEY" in ran.reason


# The model's side.


def test_a_question_without_room_is_lost_without_asking_the_grader(evaluate):
    full = {"match": "Write Alpha.", "status": 400, "message": "This model's maximum context length is 10 tokens."}
    judge = [rule for name in LETTERS[1:] for rule in both(name, "B>A", "A>B")]
    ran, log = evaluate("arenahardwriting", ARENA, [full, *MODEL], judge)
    assert ran.metrics["accuracy"] == 6 / 12
    assert ran.metrics["details"]["model_length"] == 1
    assert len(log) == 6


def test_a_cut_off_answer_is_judged_and_counted(evaluate):
    cut = {"match": "Write Alpha.", "say": "New Alpha", "finish": "length"}
    ran, _ = evaluate("arenahardwriting", ARENA, [cut, *MODEL], ALL_LOST)
    assert (ran.metrics["accuracy"], ran.metrics["details"]["truncated"]) == (0, 1)


def test_an_answer_that_never_came_is_no_score(evaluate):
    broken = {"match": "Write Alpha.", "status": 500, "message": "CUDA error"}
    ran, log = evaluate("arenahardwriting", ARENA, [broken, *MODEL], ALL_LOST, "--max-retries", "1")
    assert ran.code == 1
    assert "1 of 4" in ran.reason
    assert "CUDA error" in ran.reason
    assert not log  # no judgement is paid for


def test_a_limit_takes_the_same_items_every_time(evaluate):
    def asked() -> list[str]:
        ran, log = evaluate("arenahardwriting", ARENA, MODEL, ALL_LOST, "--limit", "2")
        assert ran.metrics["n"] == 2
        return sorted(body["messages"][1]["content"] for body in log)

    assert asked() == asked()


@pytest.mark.parametrize("spoil", [{"baseline": None}, {"prompt": None}], ids=["baseline", "prompt"])
def test_an_item_in_another_format_is_wrong_usage(evaluate, spoil):
    ran, _ = evaluate("arenahardwriting", [ARENA[0] | spoil], MODEL, ALL_LOST)
    assert ran.code == 2
    assert "'0'" in ran.reason


def test_a_baseline_may_be_a_record_of_arena_hard(evaluate):
    record = {
        "uid": "0",
        "messages": [{"role": "user"}, {"role": "assistant", "content": {"answer": "Old Write Alpha."}}],
    }
    metrics = evaluate("arenahardwriting", [ARENA[0] | {"baseline": record}], MODEL, ALL_LOST)[0].metrics
    assert (metrics["accuracy"], metrics["n"], metrics["stderr"]) == (0, 1, 0)


# HealthBench.


def rubric(criterion: str, points: int, axis: str = "accuracy") -> dict:
    return {"criterion": criterion, "points": points, "tags": ["level:example", f"axis:{axis}"]}


HEALTH = [
    {
        "prompt_id": "a",
        "prompt": [{"role": "user", "content": "My head hurts."}],
        "rubrics": [rubric("Asks for how long", 5), rubric("Names a doctor", 3, "completeness"), rubric("Scares", -4)],
        "example_tags": ["theme:context_seeking"],
    },
    {
        "prompt_id": "b",
        "prompt": [
            {"role": "user", "content": "Can I run?"},
            {"role": "assistant", "content": "Why?"},
            {"role": "user", "content": "A cold."},
        ],
        "rubrics": [rubric("Says rest", 10), rubric("Forbids everything", -2)],
        "example_tags": [],
    },
]
DOCTOR = [{"match": "head hurts", "say": "Since when?"}, {"match": "A cold", "say": "Rest."}]


def finding(criterion: str, met: object, **more: object) -> dict:
    return {"match": f"<criterion>\n{criterion}\n</criterion>", "say": json.dumps({"why": "-", "met": met}), **more}


FINDINGS = [
    finding("Asks for how long", True),
    finding("Names a doctor", False),
    finding("Scares", True),
    finding("Says rest", True) | {"say": '```json\n{"why": "-", "met": true}\n```'},
    finding("Forbids everything", False),
]


def test_points_are_added_up(evaluate):
    ran, log = evaluate("healthbench", HEALTH, DOCTOR, FINDINGS)
    metrics = ran.metrics
    assert metrics["accuracy"] == (1 / 8 + 1) / 2
    assert math.isclose(metrics["stderr"], (1 - 1 / 8) / 2)
    assert metrics["details"]["points_by_axis"] == {"accuracy": round(11 / 15, 6), "completeness": 0.0}
    assert "user: Can I run?\n\nassistant: Why?\n\nuser: A cold." in json.dumps(log).replace("\\n", "\n")


def test_the_mean_is_not_below_zero(evaluate):
    worst = [
        finding("Scares", True),
        finding("Forbids everything", True),
        *[one | {"match": ""} for one in [finding("", False)]],
    ]
    metrics = evaluate("healthbench", HEALTH, DOCTOR, worst)[0].metrics
    assert metrics["accuracy"] == 0
    assert metrics["details"]["unclipped_mean"] == (-4 / 8 - 2 / 10) / 2


@pytest.mark.parametrize("reply", ["yes", "[]", "{}", '{"met": "true"}', '{"met": 1}', '{"met": true} or not'])
def test_a_finding_must_be_true_or_false(reply):
    with pytest.raises(Malformed):
        healthbench.parse(reply)


def test_one_finding_missing_leaves_the_question_out(evaluate):
    judge = [finding("Scares", True, status=500), *FINDINGS]
    metrics = evaluate("healthbench", HEALTH, DOCTOR, judge, "--max-errors", "0.5")[0].metrics
    assert (metrics["accuracy"], metrics["n"], metrics["details"]["errored"]) == (1.0, 1, 1)


def test_a_question_without_room_scores_zero(evaluate):
    full = {"match": "head hurts", "status": 400, "message": "maximum context length is 1"}
    metrics = evaluate("healthbench", HEALTH, [full, *DOCTOR], FINDINGS)[0].metrics
    assert (metrics["accuracy"], metrics["details"]["model_length"]) == (0.5, 1)


def test_a_rubric_without_points_is_wrong_usage(evaluate):
    bad = copy.deepcopy(HEALTH)
    bad[0]["rubrics"] = [rubric("Scares", -4)]
    assert evaluate("healthbench", bad, DOCTOR, FINDINGS)[0].code == 2


def test_easy_items_are_those_of_the_easy_subset():
    is_easy = healthbench.is_easy
    talk = [{"role": "user", "content": "x"}] * 3
    easy = {"prompt": talk, "rubrics": [rubric("c", 1, "completeness"), rubric("d", -1), rubric("e", -1)]}
    assert is_easy(easy)
    assert not is_easy(easy | {"prompt": talk[:2]})
    assert not is_easy(easy | {"rubrics": [rubric("c", 1)]})
    assert not is_easy(easy | {"rubrics": [*easy["rubrics"], rubric("f", -1)]})


# Where items come from.


def test_a_data_set_that_cannot_be_had_is_no_score(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    ran = run_here(tmp_path / "environment", example("arenahardwriting"), "--model-path", "m")
    assert ran.code == 1
    assert "question.jsonl of lmarena-ai/arena-hard-auto cannot be loaded" in ran.reason


def test_files_of_a_data_set_are_put_together(tmp_path, monkeypatch):
    questions = write_items(tmp_path / "question.jsonl", [*REQUESTS, {"uid": "9", "category": "maths", "prompt": "?"}])
    record = {"messages": [{"role": "assistant", "content": {"answer": "Old"}}]}
    answers = write_items(tmp_path / "answers.jsonl", [{"uid": row["uid"], **record} for row in REQUESTS])
    hub = types.ModuleType("huggingface_hub")
    found = {"question.jsonl": questions, "gemini-2.0-flash-001.jsonl": answers}
    vars(hub)["hf_hub_download"] = lambda path, name, **_: str(found[name.rpartition("/")[2]])
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    rows = items.load(Benchmark(**example("arenahardwriting")), None, tmp_path)
    assert [row["uid"] for row in rows] == ["0", "1", "2", "3"]
    assert {arena_writing.baseline(row) for row in rows} == {"Old"}


def test_a_download_must_be_the_file_that_was_meant(tmp_path):
    source = write_items(tmp_path / "source.jsonl", HEALTH)
    right = hashlib.sha256(source.read_bytes()).hexdigest()
    benchmark = example("healthbench") | {"data": {"url": source.as_uri(), "sha256": right}}
    assert items.load(Benchmark(**benchmark), None, tmp_path) == HEALTH
    benchmark["data"]["sha256"] = "0" * 64
    with pytest.raises(Exception, match="SHA-256"):
        items.load(Benchmark(**benchmark), None, tmp_path)


def test_a_broken_line_is_named(evaluate, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text('{"uid": "1"}\n{"uid": \n')
    ran, _ = evaluate("arenahardwriting", ARENA, MODEL, ALL_LOST, "--data", path)
    assert ran.code == 2
    assert "line 2 is not JSON" in ran.reason
