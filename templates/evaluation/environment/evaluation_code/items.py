"""The items of the judged benchmarks, in their own formats, from a file, the model hub or a URL."""

# pyright: reportMissingImports=false

import hashlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation_code.benchmark import Benchmark
from evaluation_code.outcome import EvaluationError, UsageError

DOWNLOAD_SECONDS = 120

Row = dict[str, Any]


def load(benchmark: Benchmark, file: Path | None, logs: Path) -> list[Row]:
    """All items. UsageError for a file in another format, EvaluationError for a data set that cannot be had."""
    data = benchmark.data
    if file:
        rows = list(read(file))
    elif "url" in data:
        rows = list(read(download(data["url"], data.get("sha256"), logs / "items.jsonl")))
    elif "path" in data:
        rows = list(read(from_hub(data, data["file"])))
        if "baseline" in data:
            answers = {row["uid"]: row for row in read(from_hub(data, data["baseline"]))}
            rows = [row | {"baseline": answers.get(row["uid"])} for row in rows]
    else:
        raise UsageError("benchmark.json: this task needs data, or --data")
    wanted = data.get("where", {})
    chosen = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    if not chosen:
        raise UsageError(f"{file or data} has no items{f' with {wanted}' if wanted else ''}")
    return chosen


def read(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file. UsageError, with the line, for anything else."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}: line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise UsageError(f"{path}: line {number} is not an object")
            yield row


def from_hub(data: Row, name: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download

        where = {"repo_type": "dataset", "revision": data.get("revision")}
        return Path(hf_hub_download(data["path"], name, **where))
    except Exception as error:  # the hub's errors are of many kinds
        raise EvaluationError(f"{name} of {data['path']} cannot be loaded: {type(error).__name__} {error}") from None


def download(url: str, sha256: str | None, target: Path) -> Path:
    """Fetch a file. EvaluationError when it cannot be had, or is not the one that was meant."""
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as response:
            content = response.read()
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{url} cannot be loaded: {error}") from None
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        raise EvaluationError(f"{url} is not the file that was expected: its SHA-256 differs")
    target.write_bytes(content)
    return target
