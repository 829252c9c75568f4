"""In what two sides differ besides their scores: the cells' identities, their provenance, their prompts.

Of a published reference (`+parity=NAME`) each cell's parity.json says setting by setting how it stands to it.
"""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ptb_runner.results.bundle import opened
from ptb_runner.results.pairs import Side
from ptb_runner.results.row import Row, Unreadable, is_there, read_bytes, read_json
from ptb_runner.results.scores import grouped

SHOWN = 400  # bytes of a prompt's difference that are shown
# What tells the sides or the repeats apart anyway.
_EXPECTED = ("agent.id", "attempts", "seed")


@dataclass(frozen=True)
class Setting:
    """An option, or a line of the provenance, in which two sides differ, and in how many of their common places."""

    key: str
    a: list[Any]
    b: list[Any]
    n_places: int


@dataclass(frozen=True)
class Settings:
    """All in which two sides differ, of all `compared` keys; `unknown` says of which cells nothing is known."""

    differ: list[Setting]
    unknown: list[str]
    compared: list[str]


def differences(a: Side, b: Side) -> Settings:
    """Compare what the two sides' cells of each benchmark and model are, and what they were made with."""
    found: dict[str, list[tuple[list[Any], list[Any]]]] = {}
    compared: dict[str, None] = {}
    for own_a, own_b in _common(a, b):
        known_a, known_b = ([_known(side, row) for row in rows] for side, rows in ((a, own_a), (b, own_b)))
        for key in dict.fromkeys(key for one in [*known_a, *known_b] for key in one):
            values = [_distinct(one[key] for one in known if key in one) for known in (known_a, known_b)]
            if all(values):
                compared[key] = None
            if all(values) and values[0] != values[1]:
                found.setdefault(key, []).append((values[0], values[1]))
    differ = [
        Setting(
            key,
            _distinct(x for one, _ in pairs for x in one),
            _distinct(x for _, one in pairs for x in one),
            len(pairs),
        )
        for key, pairs in found.items()
    ]
    unknown = [
        f"{side.folder}/{row.folder}" for side in (a, b) for row in side.rows if not _identity(side.folder, row.folder)
    ]
    return Settings(differ, unknown, list(compared))


def _common(a: Side, b: Side) -> list[tuple[list[Row], list[Row]]]:
    places_a, places_b = (grouped(side.rows, lambda row: (row.benchmark, row.model)) for side in (a, b))
    return [(places_a[place], places_b[place]) for place in places_a if place in places_b]


def _distinct(values: Any) -> list[Any]:
    """Values that differ, in an order of their own."""
    return [json.loads(text) for text in sorted({json.dumps(value, sort_keys=True, default=str) for value in values})]


def _known(side: Side, row: Row) -> dict[str, Any]:
    """What a cell is, and what its result was made with, by key."""
    provenance = row.result["provenance"]
    found = {key: value for key, value in _identity(side.folder, row.folder).items() if key not in _EXPECTED}
    versions = provenance.get("versions") or {}
    found |= {f"version of {name}": version for name, version in versions.items() if name != "python"}
    for key in ("agent_version", "observed_gpu", "parity", "git"):
        if key in provenance:
            found[key] = provenance[key]
    if provenance["comparable"] is not None:
        found["not comparable because"] = provenance["not_comparable_because"]
    return found


@functools.lru_cache(maxsize=10_000)
def _identity(folder: Path, name: str) -> dict[str, Any]:
    """The identity that cell.yaml holds; {} where there is none."""
    try:
        return dict(yaml.load(read_bytes(opened(folder) / name / "cell.yaml"), yaml.CSafeLoader)["identity"])
    except (Unreadable, yaml.YAMLError, KeyError, TypeError, ValueError):
        return {}


# --- Parity with a published reference ----------------------------------------------------------------


@dataclass(frozen=True)
class Prompts:
    """How the prompts of two sides' cells differ, of one benchmark and model."""

    place: str
    bytes_a: int | None
    bytes_b: int | None
    bytes_differing: int | None
    difference: str


@dataclass(frozen=True)
class ParityTable:
    """The settings of a published reference as the cells of one side have them."""

    folder: Path
    reference: str | None
    title: str
    settings: list[dict[str, Any]]
    without: list[str]
    margin: float | None

    @property
    def equal(self) -> bool:
        """Whether every cell has every setting of the reference."""
        return bool(self.settings) and not self.without and all(one["equal"] for one in self.settings)


def parity_table(side: Side) -> ParityTable:
    """Read the parity.json of a side's cells; settings that all cells have alike are one line."""
    found, without, reports = [], [], []
    for row in side.rows:
        report = _parity(opened(side.folder) / row.folder)
        if report is None:
            without.append(f"cell {row.number}")
            continue
        reports.append(report)
        found += [(row.number, json.dumps(one, sort_keys=True)) for one in report["settings"]]
    settings = [
        json.loads(text) | {"cells": [number for number, _ in own]}
        for text, own in grouped(found, lambda one: one[1]).items()
    ]
    first = reports[0] if reports else {}
    margins = [report["margin"] for report in reports if isinstance(report.get("margin"), int | float)]
    names = sorted({str(report.get("reference")) for report in reports})
    return ParityTable(
        side.folder,
        ", ".join(names) or None,
        str(first.get("title", "")),
        sorted(settings, key=lambda one: (one["equal"], one["setting"])),
        without,
        min(margins, default=None),
    )


def _parity(place: Path) -> dict[str, Any] | None:
    try:
        report = read_json(place / "parity.json")
    except Unreadable:
        return None
    rows = report.get("settings") if isinstance(report, dict) else None
    sound = isinstance(rows, list) and all(
        isinstance(row, dict) and {"setting", "reference", "used", "equal"} <= row.keys() for row in rows
    )
    return report if sound else None


def prompts(a: Side, b: Side) -> list[Prompts]:
    """Compare the prompts of each benchmark and model, byte by byte."""
    return [
        _prompts(f"{own_a[0].benchmark} x {own_a[0].model}", _prompt(a, own_a[0]), _prompt(b, own_b[0]))
        for own_a, own_b in _common(a, b)
    ]


def _prompt(side: Side, row: Row) -> bytes | None:
    for name in ("task/instruction.md", "prompt.txt"):  # a cell's; a result folder's of PostTrainBench
        path = opened(side.folder) / row.folder / name
        if is_there(path):
            return read_bytes(path)
    return None


def _prompts(place: str, a: bytes | None, b: bytes | None) -> Prompts:
    if a is None or b is None:
        return Prompts(place, None if a is None else len(a), None if b is None else len(b), None, "")
    ours, theirs = (text.decode(errors="replace").splitlines(keepends=True) for text in (a, b))
    changed = difflib.unified_diff(ours, theirs, n=0)
    parts = [line for line in changed if not line.startswith(("---", "+++", "@@"))]
    return Prompts(place, len(a), len(b), _bytes_differing(a, b), "".join(parts)[:SHOWN])


def _bytes_differing(a: bytes, b: bytes) -> int:
    """Bytes of either that the other has not: in lines that were changed, without what these begin and end alike."""
    total = 0
    ours, theirs = a.splitlines(keepends=True), b.splitlines(keepends=True)
    for kind, i, j, k, m in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if kind != "equal":
            old, new = b"".join(ours[i:j]), b"".join(theirs[k:m])
            begin = _alike(old, new)
            end = _alike(old[begin:][::-1], new[begin:][::-1])
            total += len(old) + len(new) - 2 * (begin + end)
    return total


def _alike(a: bytes, b: bytes) -> int:
    """With how many bytes both begin."""
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))
