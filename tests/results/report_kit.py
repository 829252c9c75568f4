"""Sweeps as they are reported: several agents, models and benchmarks, and all that can become of a trial.

Trials' folders are written as Harbor, an agent's CLI and a verifier leave them; the records and scores are made from
them by the program's own code. Everything follows from the seed.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ptb_runner.cell import write_json
from ptb_runner.outcome import trial_record
from tests.results.collect_kit import Made, cell_yaml, entry, result, write_status, write_sweep

BEGIN = datetime.datetime(2026, 11, 20, 8, 0, tzinfo=datetime.UTC)
AGENTS = {"claude-code": 0.25, "codex": 0.2, "gemini-cli": 0.12, "opencode": 0.05}  # how much each adds to a base model
MODELS = {"qwen3-1.7b": 0.2, "qwen3-4b": 0.35, "smollm3-3b": 0.28}
BENCHMARKS = ("gsm8k", "humaneval", "bfcl", "gpqamain")
ITEMS = 150  # that a verifier scores a model on
FAILURES = {  # what a trial that is not scored comes to, and how often
    "no_model": ("the agent left no final_model", 3),
    "invalid_model": ("final_model/model.safetensors: ends early: 1073741824 bytes, 3441185608 expected", 2),
    "eval_failed": ("vLLM did not start in 4 tries: CUDA error: out of memory <GPU 0>", 2),
    "infra_error": ("Sandbox was not ready after 600 s & the provider said: 503 no capacity", 4),
    "cancelled": ("interrupted", 1),
    "agent_timeout": ("Agent execution timed out after 36000.0 seconds", 6),
}


@dataclass
class Story:
    """What a trial is to come to; `turns` is the length of its trace."""

    outcome: str
    reward: float | None
    flagged_by: str | None = None
    turns: int = 12
    no_verdict: bool = False  # the judge failed
    planted: str = ""  # text that stands wherever results can hold text


def make_report_sweep(
    folder: Path,
    *,
    agents: int = 4,
    models: int = 3,
    benchmarks: int = 4,
    attempts: int = 3,
    failing: float = 0.2,
    turns: int = 12,
    seed: int = 1,
) -> Path:
    """A sweep of agents x models x benchmarks; the last cell is only planned, and one before it is not comparable."""
    dice = random.Random(seed)
    names = [
        (agent, model, benchmark)
        for agent in list(AGENTS)[:agents]
        for model in list(MODELS)[:models]
        for benchmark in BENCHMARKS[:benchmarks]
    ]
    cells = []
    for number, (agent, model, benchmark) in enumerate(names):
        made = Made(
            trials=[],
            expected=attempts,
            benchmark=benchmark,
            model=model,
            agent=agent,
            overrides=[f"agent={agent}", f"model={model}", f"benchmark={benchmark}"],
            gpus=1,
            weight=1 / len(BENCHMARKS[:benchmarks]),
            missing_score="base_model",
            zero_shot=dict(MODELS),
            not_comparable=["the agent had 5 h, the benchmark's own limit is 10 h"] if number == len(names) - 2 else [],
            state="planned" if number == len(names) - 1 else "finished",
        )
        stories = [_story(dice, made, failing, turns) for _ in range(attempts if made.state == "finished" else 0)]
        cells.append((made, stories))
    return write_cells(folder, cells, dice)


PLANT = "<script>planted()</script><img src=x onerror=planted()>\"'><b>"


def make_planted_sweep(folder: Path) -> Path:
    """A sweep in which each text that results can hold, names of folders and files too, is HTML that would act."""
    made = Made(
        trials=[],
        expected=3,
        benchmark="gsm8k",
        model=f"m{PLANT}",
        agent=f"a$x^{{$ {PLANT}",
        overrides=[f"agent.x={PLANT}"],
        not_comparable=[PLANT],
        gpus=1,
    )
    stories = [
        Story("scored", 0.5, "gpt5_4", planted=PLANT),
        Story("infra_error", None, planted=PLANT),
        Story("eval_failed", None, planted=PLANT),
    ]
    failed = Made(trials=[], expected=1, state="failed", agent="b")
    sweep = write_cells(folder / PLANT.replace("/", "_"), [(made, stories), (failed, [])])
    (sweep / "0" / "job" / "gsm8k__001" / "agent" / PLANT.replace("/", "_")).write_text("a file's name")
    return sweep


def write_cells(folder: Path, cells: Sequence[tuple[Made, list[Story]]], dice: random.Random | None = None) -> Path:
    """A sweep's folder with these cells."""
    dice = dice or random.Random(0)
    folder.mkdir(parents=True)
    for number, (made, stories) in enumerate(cells):
        _write_cell(folder / str(number), number, made, stories, dice)
    write_sweep(folder, [entry(number, made) for number, (made, _) in enumerate(cells)])
    return folder


def _story(dice: random.Random, made: Made, failing: float, turns: int) -> Story:
    if dice.random() < failing:
        weights = [weight for _, weight in FAILURES.values()]
        outcome = dice.choices([*FAILURES, "flagged", "judge_missing"], [*weights, 3, 1])[0]
        if outcome in ("flagged", "judge_missing"):
            judge = dice.choice(("gpt5_4", "gpt5_4", "general"))
            return Story("scored", _reward(dice, made), judge, turns, no_verdict=outcome == "judge_missing")
        return Story(outcome, _reward(dice, made) if outcome == "agent_timeout" else None, None, turns)
    return Story("scored", _reward(dice, made), None, turns)


def _reward(dice: random.Random, made: Made) -> float:
    offset = 0.1 * BENCHMARKS.index(made.benchmark) if made.benchmark in BENCHMARKS else 0.0
    mean = MODELS.get(made.model, 0.3) + AGENTS.get(made.agent, 0.1) + offset
    return round(min(1.0, max(0.0, dice.gauss(mean, 0.05))) * ITEMS) / ITEMS


def _write_cell(folder: Path, number: int, made: Made, stories: list[Story], dice: random.Random) -> None:
    folder.mkdir()
    made = replace(made, trials=[story.outcome for story in stories], expected=made.n_expected)
    (folder / "cell.yaml").write_text(cell_yaml(made, number))
    trials = []
    for attempt, story in enumerate(stories, 1):
        trial = folder / "job" / f"{made.benchmark}__{attempt:03d}"
        begin = BEGIN + datetime.timedelta(minutes=dice.uniform(0, 600))
        _write_trial(trial, made, story, begin, dice)
        trials.append(trial_record(trial, attempt))
    write_status(folder, made, trials, number)
    if made.state in ("finished", "cancelled"):
        times = [[one[key] for one in trials] for key in ("started_at", "finished_at")]
        over = {"started_at": min(times[0]), "finished_at": max(times[1])} if trials else {}
        write_json(folder / "result.json", result(made, trials, number) | over)


def _write_trial(folder: Path, made: Made, story: Story, begin: datetime.datetime, dice: random.Random) -> None:
    """A trial's folder: Harbor's result, the verifier's verdict, the trace, judgements, what was collected."""
    (folder / "agent").mkdir(parents=True)
    (folder / "verifier").mkdir()
    spans = {"environment_setup": dice.uniform(20, 200), "agent_execution": dice.uniform(3000, 35000)}
    if story.outcome == "agent_timeout":
        spans["agent_execution"] = 36000.0
    if story.outcome in ("infra_error", "cancelled"):
        spans["agent_execution"] = dice.uniform(1, 900)
    else:
        spans["verifier"] = dice.uniform(300, 2400)
    written, end = _harbor_result(folder, made, story, begin, spans)
    tokens = {"n_input_tokens": dice.randrange(10**6, 10**7), "n_output_tokens": dice.randrange(10**4, 10**5)}
    cached = int(tokens["n_input_tokens"] * 0.9)
    written["agent_result"] = tokens | {"n_cache_tokens": cached, "cost_usd": round(dice.uniform(0.5, 18), 4)}
    if made.agent == "opencode":
        written["agent_result"]["cost_usd"] = None
    (folder / "result.json").write_text(json.dumps(written))
    verdict: dict[str, Any] = {
        "outcome": story.outcome,
        "reason": story.planted or FAILURES.get(story.outcome, ("",))[0],
    }
    if story.reward is not None:
        error = (story.reward * (1 - story.reward) / ITEMS) ** 0.5
        metrics = {"accuracy": story.reward, "stderr": error, "n": ITEMS, "note": story.planted or "greedy decoding"}
        verdict = {"outcome": "scored", "reason": "", "metrics": metrics}
    if story.outcome not in ("infra_error", "cancelled"):
        (folder / "verifier" / "verdict.json").write_text(json.dumps(verdict))
        (folder / "verifier" / "test-stdout.txt").write_text(f"evaluating final_model\n{story.planted}\n" * 20)
    (folder / "trial.log").write_text("sandbox made\nagent began\n")
    _write_trace(folder / "agent", made, story, begin, end, dice)
    if story.flagged_by:
        _write_judgement(folder / "judgements", story.flagged_by, story)


def _harbor_result(
    folder: Path, made: Made, story: Story, begin: datetime.datetime, spans: dict[str, float]
) -> tuple[dict[str, Any], datetime.datetime]:
    written: dict[str, Any] = {
        "task_name": story.planted or f"ptb/{made.benchmark}-{made.model}",
        "trial_name": folder.name,
        "task_checksum": "c0ffee",
        "agent_info": {"name": made.agent, "version": story.planted or "2.1.0"},
        "started_at": begin.isoformat(),
    }
    at = begin
    for name, seconds in spans.items():
        end = at + datetime.timedelta(seconds=seconds)
        written[name] = {"started_at": at.isoformat(), "finished_at": end.isoformat()}
        at = end
    written["finished_at"] = at.isoformat()
    if story.reward is not None:
        written["verifier_result"] = {"rewards": {"reward": story.reward}}
    kinds = {
        "infra_error": "EnvironmentStartTimeoutError",
        "cancelled": "CancelledError",
        "agent_timeout": "AgentTimeoutError",
    }
    if story.outcome in kinds:
        info = {
            "exception_type": kinds[story.outcome],
            "exception_message": story.planted or FAILURES[story.outcome][0],
        }
        written["exception_info"] = info | {"occurred_at": written["agent_execution"]["finished_at"]}
    return written, at


def _write_trace(
    folder: Path, made: Made, story: Story, begin: datetime.datetime, end: datetime.datetime, dice: random.Random
) -> None:
    """A trajectory in Harbor's form, of the length that the story names."""
    step: dict[str, Any] = {"step_id": 1, "source": "user", "message": story.planted or "Post-train the model."}
    steps = [step | {"timestamp": begin.isoformat()}]
    for number in range(2, story.turns + 1):
        at = begin + (end - begin) * (number / (story.turns + 1))
        loss = "\n".join(
            f"step {10 * line}: loss {dice.uniform(0.2, 2.5):.4f}" for line in range(dice.randrange(3, 30))
        )
        command = {"command": story.planted or f"python train.py --lr {dice.uniform(1e-6, 1e-4):.2e} && bash timer.sh"}
        call = {"tool_call_id": f"call_{number}", "function_name": story.planted or "Bash", "arguments": command}
        steps.append(
            {
                "step_id": number,
                "timestamp": at.isoformat(),
                "source": "agent",
                "message": story.planted or "The loss has settled; a lower learning rate comes next.",
                "reasoning_content": story.planted or None,
                "tool_calls": [call],
                "observation": {
                    "results": [{"source_call_id": call["tool_call_id"], "content": story.planted or loss}]
                },
                "metrics": {"prompt_tokens": 2000 * number, "completion_tokens": 180, "cached_tokens": 1800 * number},
            }
        )
    content = {
        "schema_version": "ATIF-v1.6",
        "session_id": "session",
        "agent": {"name": made.agent, "version": "2.1.0", "model_name": "llm"},
        "steps": steps,
    }
    (folder / "trajectory.json").write_text(json.dumps(content))


def _write_judgement(folder: Path, judge: str, story: Story) -> None:
    """A judge's file, as a judge leaves it; it objects to one thing of two."""
    folder.mkdir()
    verdict = {
        "contamination": True,
        "justification_contamination": story.planted or "train.jsonl holds 41 of the 1,319 test items word for word.",
        "disallowed_model": False,
        "justification_disallowed_model": story.planted or "The configuration is the base model's.",
    }
    content = {
        "judge": judge,
        "effect": "review" if judge == "general" else "flag",
        "fields": ["contamination", "disallowed_model"],
        "verdict": None if story.no_verdict else verdict,
        "model": "gpt-5.4",
        "effort": "xhigh",
        "turns": 9,
        "tokens": {"input": 120000, "cached": 90000, "output": 4000},
        "cost_usd": 0.31,
        "error": {"type": "RateLimitError", "message": "429 after 5 tries"} if story.no_verdict else None,
        "finished_at": "2026-11-21T08:00:00+00:00",
    }
    (folder / f"{judge}.json").write_text(json.dumps(content))
