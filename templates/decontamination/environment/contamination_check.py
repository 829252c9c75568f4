#!/usr/bin/env python3
"""Looks for a benchmark's test items in training data: any run of 13 words that both have in common.

    python3 contamination_check.py train.jsonl notes.txt data_folder
    zcat big.jsonl.gz | python3 contamination_check.py -

Each line of a JSONL file is one example, of which every text counts; all else is read as plain text. For every line and
every test item that overlap, one JSON object is printed:

    {"file": "train.jsonl", "line": 17, "item": 3, "overlap": 0.42, "text": "the run of words that was found first"}

item is the test item's `id`, or else its place in the list, from 0; overlap the part of the item's runs that the line
holds. Case, punctuation and spacing do not matter. Where tiktoken and its vocabulary are at hand, its tokens count in
place of words, unless --tokens words says otherwise. An item shorter than a run is looked for as a whole, unless it has
fewer than 6.

Files are streamed: memory does not grow with them. Exit codes: 0 nothing found, 1 something found, 2 wrong usage.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
WORD = re.compile(r"\w+")
SHORTEST_ITEM = 6  # tokens; fewer would be found in any text
PIECE_CHARS = 4 * 2**20  # longer lines are read in pieces, as plain text
MAX_SHOWN_CHARS = 200
READABLE = {".jsonl", ".ndjson", ".json", ".txt", ".md", ".csv", ".tsv", ".py", ".text", ""}
JSONL = {".jsonl", ".ndjson"}
NOT_TEXT = "not a text file; write its examples as JSONL first (parquet, arrow and archives cannot be read)"

Token = Any  # a word, or tiktoken's number of one
Tokenize = Callable[[str], list[Token]]


class UsageError(Exception):
    """What was asked for cannot be done."""


# ---------------------------------------------------------------------------------------------------------------------
# Tokens.


def words(text: str) -> list[Token]:
    return WORD.findall(text.lower())


def tiktoken_tokens() -> tuple[Tokenize, Callable[[list[Token]], str]]:
    """Tokens of the words alone, and back. UsageError without tiktoken, or without its vocabulary, which it fetches."""
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]

        encoding = tiktoken.get_encoding("cl100k_base")
    except Exception as error:  # no package, no network, no file
        raise UsageError(f"tiktoken cannot be used: {type(error).__name__} {error}") from None

    def tokenize(text: str) -> list[Token]:
        # The space makes a text's first word the same token as elsewhere.
        return encoding.encode_ordinary("".join(f" {word}" for word in words(text)))

    return tokenize, lambda tokens: encoding.decode(tokens).strip()


def tokenizer(name: str) -> tuple[str, Tokenize, Callable[[list[Token]], str]]:
    """The tokenizer's name, how it takes a text apart, and how it shows a run; "auto": tiktoken where it works."""
    if name != "words":
        try:
            return "tiktoken", *tiktoken_tokens()
        except UsageError:
            if name != "auto":
                raise
    return "words", words, " ".join


# ---------------------------------------------------------------------------------------------------------------------
# The test items.


@dataclass
class Index:
    """The runs of all test items, by their hash."""

    n: int
    ids: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # runs of each item
    runs: dict[int, int] = field(default_factory=dict)  # a run's hash -> its item; the first one, if several share it
    lengths: set[int] = field(default_factory=set)  # n, and those of shorter items
    too_short: int = 0

    def add(self, name: Any, tokens: list[Token]) -> None:
        length = min(self.n, len(tokens))
        if length < min(SHORTEST_ITEM, self.n):
            self.too_short += 1
            return
        self.lengths.add(length)
        number = len(self.ids)
        runs = {hash(tuple(tokens[start : start + length])) for start in range(len(tokens) - length + 1)}
        self.ids.append(name)
        self.sizes.append(len(runs))
        for run in runs:
            self.runs.setdefault(run, number)


def read_index(path: Path, n: int, tokenize: Tokenize) -> Index:
    """UsageError unless the file is a list of test items, as JSON or JSONL, with something to look for."""
    try:
        text = path.read_text(encoding="utf-8")
        is_jsonl = path.suffix in JSONL
        items = [json.loads(line) for line in text.splitlines() if line.strip()] if is_jsonl else json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(items, list):
        raise UsageError(f"{path} is not a list of test items")
    index = Index(n)
    for number, item in enumerate(items):
        given = item.get("id") if isinstance(item, dict) else None
        texts = texts_of({key: value for key, value in item.items() if key != "id"} if isinstance(item, dict) else item)
        index.add(number if given is None else given, tokenize("\n".join(texts)))
    if not index.runs:
        raise UsageError(f"{path} has no test items to look for")
    return index


def texts_of(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts_of(inner)


# ---------------------------------------------------------------------------------------------------------------------
# The training data.


@dataclass
class Hit:
    """What one line has in common with one test item: how many runs, and the first of them."""

    runs: set[int]
    first: list[Token]


def scan(index: Index, tokens: list[Token], hits: dict[int, Hit], begin: int = 0) -> None:
    """Note every run that ends at or after ``begin``."""
    runs = index.runs
    for length in index.lengths:
        for start in range(max(0, begin - length + 1), len(tokens) - length + 1):
            run = hash(tuple(tokens[start : start + length]))
            number = runs.get(run)
            if number is not None:
                hits.setdefault(number, Hit(set(), tokens[start : start + length])).runs.add(run)


def pieces(file: IO[str]) -> Iterator[tuple[int, str, bool]]:
    """A file's lines with their numbers; longer ones in pieces that end between words. True: a whole line."""
    number, rest, whole = 1, "", True
    while chunk := file.readline(PIECE_CHARS):
        if chunk.endswith("\n") or len(chunk) < PIECE_CHARS:
            yield number, rest + chunk, whole
            number, rest, whole = number + 1, "", True
            continue
        whole = False
        cut = max(chunk.rfind(" "), chunk.rfind("\\n"), 0) or len(chunk)
        yield number, rest + chunk[:cut], False
        rest = chunk[cut:]
    if rest:
        yield number, rest, False


def hits_of(index: Index, file: IO[str], is_jsonl: bool, tokenize: Tokenize) -> Iterator[tuple[int, dict[int, Hit]]]:
    """The hits of every line that has some."""
    carried: list[Token] = []  # in plain text a run may go on over the end of a line
    for number, text, whole in pieces(file):
        hits: dict[int, Hit] = {}
        example = parsed(text) if is_jsonl and whole else None
        if example is not None:
            for one in texts_of(example):
                scan(index, tokenize(one), hits)
            carried = []
        else:
            tokens = carried + tokenize(unescaped(text))
            scan(index, tokens, hits, begin=len(carried))
            carried = tokens[-index.n + 1 :] if index.n > 1 else []
        if hits:
            yield number, hits


def parsed(line: str) -> Any:
    """The JSON value of a line; None when it is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def unescaped(text: str) -> str:
    r"""JSON read as plain text has \n for a line's end, which would stick to the next word."""
    return re.sub(r"\\[nrt]", " ", text)


def check(index: Index, name: str, file: IO[str], options: argparse.Namespace, tokenize: Tokenize, show: Any) -> int:
    """Print the hits of one file; how many there were."""
    count = 0
    is_jsonl = name == "-" or Path(name).suffix in JSONL
    for line, hits in hits_of(index, file, is_jsonl, tokenize):
        for number, hit in sorted(hits.items()):
            overlap = len(hit.runs) / index.sizes[number]
            if overlap < options.min_overlap:
                continue
            count += 1
            text = show(hit.first)[:MAX_SHOWN_CHARS]
            found = {"file": name, "line": line, "item": index.ids[number], "overlap": round(overlap, 4), "text": text}
            print(json.dumps(found, ensure_ascii=False), flush=True)
    return count


def files_of(names: Iterable[str], test_data: Path) -> Iterator[str]:
    """The files that the names stand for: of a folder, those with a readable suffix. UsageError for a missing one."""
    for name in names:
        path = Path(name)
        if name != "-" and path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.suffix in READABLE and one.is_file())
            yield from (str(one) for one in inside if one.resolve() != test_data.resolve() and is_text(one))
        elif name == "-" or path.is_file():
            if name != "-" and not is_text(path):
                raise UsageError(f"{name}: {NOT_TEXT}")
            yield name
        else:
            raise UsageError(f"{name}: no such file or folder")


def is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


# ---------------------------------------------------------------------------------------------------------------------


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Look for a benchmark's test items in training data.")
    add = parser.add_argument
    add(
        "data",
        nargs="+",
        help="files of training data or folders of them; -: JSONL from standard input",
    )
    add("--test-data", type=Path, default=HERE / "test_data.json", help="the test items, default: %(default)s")
    add("-n", type=int, default=13, help="tokens in a run, default: %(default)s")
    add("--min-overlap", type=float, default=0.0, help="show only overlaps of at least this part of an item, 0 to 1")
    add("--tokens", choices=("auto", "words", "tiktoken"), default="auto", help="default: tiktoken where it works")
    options = parser.parse_args(arguments)
    if options.n < 1 or not 0 <= options.min_overlap <= 1:
        parser.error("-n must be at least 1 and --min-overlap from 0 to 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        name, tokenize, show = tokenizer(options.tokens)
        index = read_index(options.test_data, options.n, tokenize)
        files = list(files_of(options.data, options.test_data))
        count = 0
        for path in files:
            if path == "-":
                count += check(index, path, sys.stdin, options, tokenize, show)
                continue
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                count += check(index, path, file, options, tokenize, show)
    except (UsageError, OSError) as error:
        print(f"contamination_check.py: {error}", file=sys.stderr)
        return 2
    skipped = f"; {index.too_short} test items are too short to be looked for" if index.too_short else ""
    print(f"{count} hits in {len(files)} files, by runs of {options.n} {name}{skipped}", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
