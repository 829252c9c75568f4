"""A stand-in for PostTrainBench's own collect and aggregate scripts, written from what is known of them.

It shares nothing with the exporter: names are split at underscores, the newest run of each benchmark and model counts,
flagged and unscored runs are the base model's zero-shot score, a method with an unjudged scored run is left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parents[2] / "conf"
_CONFS = [yaml.safe_load(path.read_text()) for path in (CONF / "benchmark").glob("*.yaml")]
BENCHMARKS: dict[str, dict[str, Any]] = {one["id"]: one for one in _CONFS if one.get("weight")}
# As their names have them, with the id that conf/ has for each.
MODELS = {
    "Qwen3-1.7B-Base": "qwen3-1.7b",
    "Qwen3-4B-Base": "qwen3-4b",
    "SmolLM3-3B-Base": "smollm3-3b",
    "gemma-3-4b-pt": "gemma3-4b",
}


class NotAggregated(Exception):
    """A scored run lacks a verdict that is required."""


def methods(results: Path) -> list[str]:
    return sorted(path.name for path in results.iterdir() if path.is_dir() and not path.name.startswith("_"))


def latest(method: Path) -> dict[tuple[str, str], Path]:
    found: dict[tuple[str, str], tuple[int, Path]] = {}
    for entry in method.iterdir():
        if not entry.is_dir():
            continue
        benchmark, _org, model, run = entry.name.split("_")  # a ValueError ends the benchmark's script, and this one
        key = benchmark, model
        if key not in found or int(run) > found[key][0]:
            found[key] = int(run), entry
    return {key: path for key, (_, path) in found.items()}


def _verdict(run: Path, judge: str, field: str) -> bool | None:
    for name in (f"judgement_{judge}_rerun.json", f"judgement_{judge}.json"):
        if (run / name).exists():
            value = json.loads((run / name).read_text())[field]
            assert isinstance(value, bool), f"{run / name}: {field} is {value!r}"
            return value
    return None


def seconds(run: Path) -> int:
    found = re.fullmatch(r"(\d+):(\d{1,2}):(\d{1,2})", (run / "time_taken.txt").read_text().strip())
    assert found, f"{run}: time_taken.txt"
    hours, minutes, rest = map(int, found.groups())
    assert minutes < 60
    assert rest < 60
    return hours * 3600 + minutes * 60 + rest


def final(run: Path | None, benchmark: str, model: str) -> float:
    """What a run counts as."""
    base = BENCHMARKS[benchmark]["zero_shot"][MODELS[model]]
    if run is None or not (run / "metrics.json").exists():
        return base
    accuracy = json.loads((run / "metrics.json").read_text())["accuracy"]
    assert isinstance(accuracy, int | float)
    assert not isinstance(accuracy, bool)
    seconds(run)
    fields = [("gpt5_4", "contamination"), ("gpt5_4", "disallowed_model"), ("api", "disallowed_api_usage")]
    verdicts = [_verdict(run, judge, field) for judge, field in fields]
    looked_up = _verdict(run, "ptb_lookup", "disallowed_ptb_lookup")
    if None in verdicts or looked_up is None:
        raise NotAggregated(run.name)
    if looked_up:
        raise RuntimeError(f"{run.name}: stops the aggregation")
    return base if any(verdicts) else float(accuracy)


def weighted(results: Path, method: str) -> float:
    """The leaderboard's score of a method."""
    runs = latest(results / method)
    total = 0.0
    for benchmark, options in BENCHMARKS.items():
        scores = [final(runs.get((benchmark, model)), benchmark, model) for model in MODELS]
        total += options["weight"] * sum(scores) / len(scores)
    return total
