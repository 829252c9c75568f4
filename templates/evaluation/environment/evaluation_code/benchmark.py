"""benchmark.json: everything in which two benchmarks differ, so that they share one evaluator.

    id                      name in messages
    title                   name for people
    task                    what is run: "module:function" below inspect_evals (gsm8k.gsm8k:gsm8k), or one of our own:
                            aime, gpqa_main; with a grader: arena_writing, healthbench
    task_args               keyword arguments of an inspect_evals task; its installed version may lack some: left out
    data                    where the items are, if the task does not know:
                              {"path": "org/name", "name": ..., "split": ..., "revision": ...}: a data set on the hub
                              {"path": "org/name", "file": "a.jsonl", "baseline": "b.jsonl"}: files there
                              {"url": "https://...", "sha256": ...}: a file to download
                              {"file": "items.jsonl"}: a file beside evaluate.py
                            with a grader also
                              "where": {"category": "creative_writing"}: only the items with these values
                              "subset": "easy": only HealthBench's easy items
    limit                   items for a quick try, the default of --limit; -1: all
    max_tokens              tokens that an answer may have, the default of --max-tokens
    max_connections         questions asked at once, the default of --max-connections
    gpu_memory_utilization  part of the GPU's memory for vLLM, 0 to 1, the default of --gpu-memory-utilization
    max_model_len           tokens of prompt and answer together; null: the model's own limit
    tool_parser             how vLLM reads tool calls (hermes); null: no tools
    epochs                  how often each question is asked; its score is the mean
    max_errors              part of all samples that may go without a score, 0 to 1
    grader                  the model that judges answers, see Grader; null: none

Only id, task, max_tokens and max_connections are required.
"""

import json
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from evaluation_code.outcome import UsageError

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Grader:
    """A model behind an OpenAI-compatible interface; base_url null: OPENAI_BASE_URL, or else OpenAI's own."""

    model: str
    base_url: str | None = None
    api_key_var: str = "OPENAI_API_KEY"  # the environment variable that holds the key
    reasoning_effort: str | None = None
    max_tokens: int = 49152  # tokens of one judgement, its reasoning included
    workers: int = 64  # judgements under way at once
    retries: int = 5  # further tries of one judgement after 429, 5xx, a lost connection or a malformed verdict
    timeout_sec: float = 600.0  # one try
    backoff_sec: float = 1.0  # pause before the first retry; it doubles from there
    max_backoff_sec: float = 60.0
    decisive_weight: float = 3.0  # how often a clear win or loss counts (arena_writing), as in Arena-Hard


@dataclass(frozen=True)
class Benchmark:
    """The fields of benchmark.json."""

    id: str
    task: str
    max_tokens: int
    max_connections: int
    title: str = ""
    task_args: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    limit: int = -1
    gpu_memory_utilization: float = 0.8
    max_model_len: int | None = None
    tool_parser: str | None = None
    epochs: int = 1
    max_errors: float = 0.0
    grader: Grader | None = None

    @classmethod
    def read(cls, path: Path) -> "Benchmark":
        """UsageError, with the file's name, unless it is a whole and known description."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.get("grader") is not None:
                data["grader"] = _filled(Grader, data["grader"])
            return _filled(cls, data)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{path}: {error}") from None


def _filled(kind: type[Settings], values: dict[str, Any]) -> Settings:  # noqa: UP047  # Python 3.10
    known = {item.name: item for item in fields(kind)}  # pyright: ignore[reportArgumentType]
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"unknown field {unknown[0]!r}; known are {', '.join(known)}")
    required = {name for name, item in known.items() if item.default is MISSING and item.default_factory is MISSING}
    if missing := sorted(required - set(values)):
        raise ValueError(f"field {missing[0]!r} is missing")
    return kind(**values)
