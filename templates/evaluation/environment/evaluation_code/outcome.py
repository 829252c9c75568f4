"""What an evaluation can come to: metrics, or one of three errors."""

import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("inspect-ai", "inspect-evals", "openai", "vllm", "transformers")


class UsageError(Exception):
    """The command line or benchmark.json asks for something that does not exist. Exit code 2."""


class InvalidModel(Exception):
    """The model itself does not load. Exit code 3; only for what another machine would not do better."""


class EvaluationError(Exception):
    """There is no score, and it need not be the model's fault. Exit code 1."""


@dataclass(frozen=True)
class Metrics:
    """A score from 0 to 1 over `n` questions, its standard error, and how it came about."""

    accuracy: float
    stderr: float
    n: int
    details: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write the file whole or not at all. EvaluationError when the score is not a number from 0 to 1."""
        if not (0 <= self.accuracy <= 1 and math.isfinite(self.stderr) and self.n > 0):  # false for NaN, too
            raise EvaluationError(f"not a score: accuracy {self.accuracy}, stderr {self.stderr}, n {self.n}")
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(vars(self), file, indent=2, allow_nan=False)
                file.write("\n")
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise


def mean_and_error(scores: Sequence[float]) -> tuple[float, float]:
    """The mean of at least one score and the standard error of that mean (0 for a single score)."""
    spread = statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
    return statistics.fmean(scores), spread


def check_missing(errors: Sequence[str], missing: int, total: int, allowed: float) -> None:
    """EvaluationError when too many samples have no score: they are neither zeros nor left out silently.

    `allowed` is the part of `total` that may be missing, 0 to 1.
    """
    if missing > allowed * total or missing == total:
        reason = errors[0] if errors else "no reason is known"
        raise EvaluationError(f"{missing} of {total} samples have no score, {allowed:.0%} may be missing: {reason}")


def versions() -> dict[str, str]:
    """The installed packages that a score depends on: scores of different ones need not be comparable."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def one_line(error: BaseException | str, most: int = 400) -> str:
    """An error's message as a single line, or its type where it has none; of a long one, the beginning and the end."""
    line = " ".join(str(error).split()) or type(error).__name__
    return line if len(line) <= most else f"{line[: most // 2]} ... {line[-most // 2 :]}"
