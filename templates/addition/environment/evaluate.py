"""Scores a nano model folder on sums: greedy answers, compared with the exact result.

    python3 evaluate.py --model-path final_model --limit 150 --json-output-file metrics.json

Without --data the sums are those of validation.txt beside this file, or else of test.txt. --limit -1 takes all of
them, otherwise the first so many. Exit codes: 0 scored, 2 wrong usage, 3 the folder is not a usable model.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # leaves no __pycache__ beside the files it is run from
sys.path.insert(0, str(HERE))  # `python3 -I` leaves the script's own folder out

from nano import InvalidModel, generate, load  # noqa: E402

DEFAULT_DATA = ("validation.txt", "test.txt")
LINE = re.compile(r"(\d+\+\d+=)(\d+)")
EXIT_USAGE, EXIT_INVALID_MODEL = 2, 3

Sum = tuple[str, str]


def read_sums(path: Path) -> list[Sum]:
    """The lines of a data file, as prompt ("12+34=") and answer ("46"). ValueError for a line that is no sum."""
    sums = []
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), start=1):
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{path}: line {number} is not a sum like 12+34=46")
        sums.append((match[1], match[2]))
    if not sums:
        raise ValueError(f"{path}: no sums")
    return sums


def score(model_path: Path, sums: list[Sum]) -> dict:
    """The metrics of a model over some sums. InvalidModel when the model cannot be loaded or used."""
    answers = generate(load(model_path), [prompt for prompt, _ in sums])
    right = [answer == expected for answer, (_, expected) in zip(answers, sums, strict=True)]
    asked = Counter(len(expected) for _, expected in sums)
    solved = Counter(len(expected) for (_, expected), hit in zip(sums, right, strict=True) if hit)
    accuracy = sum(right) / len(sums)
    return {
        "accuracy": accuracy,
        "stderr": (accuracy * (1 - accuracy) / len(sums)) ** 0.5,
        "n": len(sums),
        "details": {
            "correct": sum(right),
            "not_a_number": sum(not answer.isdecimal() for answer in answers),
            "by_answer_digits": {str(d): {"n": asked[d], "correct": solved[d]} for d in sorted(asked)},
        },
    }


def write_json(path: Path, data: dict) -> None:
    """Write the file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
            file.write("\n")
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise


def default_data() -> Path:
    return next((HERE / name for name in DEFAULT_DATA if (HERE / name).exists()), HERE / DEFAULT_DATA[0])


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Score a nano model folder on sums.")
    parser.add_argument("--model-path", type=Path, required=True, help="the model's folder")
    parser.add_argument("--limit", type=int, default=-1, help="how many sums, from the first; -1: all (default)")
    parser.add_argument("--json-output-file", type=Path, help="where to write the metrics")
    parser.add_argument("--data", type=Path, default=default_data(), help="a file of sums, default: %(default)s")
    options = parser.parse_args(arguments)
    if options.limit != -1 and options.limit < 1:
        parser.error("--limit must be -1 or at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        sums = read_sums(options.data)
    except (OSError, ValueError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        metrics = score(options.model_path, sums if options.limit == -1 else sums[: options.limit])
    except InvalidModel as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return EXIT_INVALID_MODEL
    if options.json_output_file:
        write_json(options.json_output_file.absolute(), metrics)
    print(f"accuracy {metrics['accuracy']:.4f} +- {metrics['stderr']:.4f} on {metrics['n']} sums")
    return 0


if __name__ == "__main__":
    sys.exit(main())
