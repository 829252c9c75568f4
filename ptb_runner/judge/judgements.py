"""What judges said of a trial, on disk, and what follows from it.

`job/<trial>/judgements/<judge>.json` holds a judge's verdict, or the reason why there is none; the transcript lies
beside it. A rerun goes to `<judge>_rerun.json` and wins, unless it has no verdict and the first one has. Nothing is
overwritten: of several reruns all but one are in `superseded/`, and one without a verdict moves none that has one.
That a judge's prompt lies in the cell's folder, as `judges/<judge>.md`, says that each trial must have its verdict.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptb_runner.cell import read_json, write_json
from ptb_runner.config import JudgeEffect

FOLDER = "judgements"
PROMPTS = "judges"
RERUN = "_rerun"
SUPERSEDED = "superseded"
REVIEWS = "reviews.json"
DECISIONS = ("accepted", "rejected")
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")

# What a trial's record repeats of a judgement; the rest is in its file.
_REPEATED = (
    *("effect", "verdict", "engine", "program", "model", "effort"),
    *("turns", "tokens", "cut_short", "error", "finished_at"),
)


def read(trial_dir: Path) -> dict[str, dict[str, Any]]:
    """Each judge's judgement that counts, by the judge's id, in the order of their names."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((trial_dir / FOLDER).glob("*.json"), key=lambda path: path.stem):
        judge, again = path.stem.removesuffix(RERUN), path.stem.endswith(RERUN)
        one = _sound(path)
        before = found.get(judge)
        if before is None or one["verdict"] is not None or before["verdict"] is None:
            found[judge] = one | {
                "rerun": bool(again),
                "file": f"{trial_dir.parent.name}/{trial_dir.name}/{FOLDER}/{path.name}",
            }
    return found


def _sound(path: Path) -> dict[str, Any]:
    """A judgement whose verdict can be believed; one that is damaged has none, so that its judge counts as missing."""
    content = read_json(path)
    one: dict[str, Any] = content if isinstance(content, dict) else {}
    verdict, fields = one.get("verdict"), one.get("fields")
    whole = (
        isinstance(verdict, dict)
        and isinstance(fields, list)
        and bool(fields)
        and all(type(verdict.get(name)) is bool for name in fields)
        and one.get("effect") in JudgeEffect.__members__
    )
    if whole:
        return one
    error = one.get("error")
    if not (isinstance(error, dict) and isinstance(error.get("message"), str)):
        error = {"type": "Damaged", "message": f"{path.name} holds no verdict"}
    return {**one, "verdict": None, "error": error, "fields": fields if isinstance(fields, list) else []}


def expected(cell: Path) -> list[str]:
    """The judges that each trial of a cell must have had."""
    return sorted(path.stem for path in (cell / PROMPTS).glob("*.md"))


def missing(trial_dir: Path, judges: Collection[str]) -> list[str]:
    """Which of these judges have given no verdict yet."""
    found = read(trial_dir)
    return [judge for judge in judges if judge not in found or found[judge]["verdict"] is None]


def place(trial_dir: Path, judge: str) -> Path:
    """Where a judge's next judgement goes; a third one is kept aside until it is known whether it counts."""
    folder = trial_dir / FOLDER
    for path in (folder / f"{judge}.json", folder / f"{judge}{RERUN}.json"):
        if not path.exists():
            return path
    past = folder / SUPERSEDED
    past.mkdir(exist_ok=True)
    return past / f"{judge}{RERUN}.{len(list(past.glob(f'{judge}{RERUN}.*.json'))) + 1}.json"


def keep(path: Path, judge: str, content: dict[str, Any]) -> None:
    """Write a judgement to its place; there or, if it was kept aside and counts, in the place of the earlier rerun."""
    again = path.parent.parent / f"{judge}{RERUN}.json"
    if path.parent.name == SUPERSEDED and (content["verdict"] is not None or _sound(again)["verdict"] is None):
        earlier = read_json(again)
        if isinstance(earlier, dict):
            _write(path, earlier)
        else:
            path.write_bytes(again.read_bytes())
        _swap(transcript(path), transcript(again))
        path = again
    _write(path, content)


def _write(path: Path, content: dict[str, Any]) -> None:
    write_json(path, content | {"transcript": transcript(path).name})


def _swap(new: Path, old: Path) -> None:
    aside = new.with_name(f".{new.name}")
    if old.exists():
        old.replace(aside)
    new.replace(old)
    if aside.exists():
        aside.replace(new)


def transcript(path: Path) -> Path:
    """Where the transcript of a judgement is."""
    return path.with_name(f"{path.stem}.transcript.jsonl")


def cost(trial_dir: Path) -> float:
    """Dollars that the judges of a trial have cost, earlier tries too."""
    found = [read_json(path) for path in (trial_dir / FOLDER).glob("**/*.json")]
    prices = [one.get("cost_usd") for one in found if isinstance(one, dict)]
    return sum(price for price in prices if isinstance(price, int | float))


# --- What follows -------------------------------------------------------------------------------------


@dataclass
class Standing:
    """What the judgements make of a trial; the texts name the judge and its field."""

    judgements: dict[str, dict[str, Any]] = field(default_factory=dict)
    objections: list[str] = field(default_factory=list)  # a flag that no review has to confirm, or one that it did
    missing: list[str] = field(default_factory=list)
    review: dict[str, Any] | None = None

    @property
    def flags(self) -> list[str]:
        """For a record's `flags`."""
        state = f"review_{self.review['state']}" if self.review else ""
        return [
            *(f"judge_says:{one.partition(': ')[0]}" for one in self.objections),
            *(f"{state}:{name}" for name in (self.review or {}).get("raised", [])),
            *(f"judge_cut_short:{judge}" for judge, one in self.judgements.items() if one.get("cut_short")),
        ]


def standing(trial_dir: Path) -> Standing:
    """What the cell's judges, and any other that has judged the trial, make of it."""
    found, judges = read(trial_dir), expected(trial_dir.parent.parent)
    absent = {"verdict": None, "error": {"type": "NotJudged", "message": "not judged yet"}}
    known = {judge: found.get(judge, absent) for judge in [*judges, *(name for name in found if name not in judges)]}
    result = Standing({judge: _repeated(one) for judge, one in known.items()})
    for judge, one in known.items():
        if one["verdict"] is None:
            result.missing.append(f"{judge}: {one['error']['message']}")
        elif one["effect"] == JudgeEffect.flag.name:
            result.objections += [f"{name}: {text}" for name, text in _raised(judge, one)]
    to_review = {judge: one for judge, one in known.items() if one.get("effect") == JudgeEffect.review.name}
    result.review = _review(trial_dir, to_review)
    for judge, one in result.judgements.items():
        asks = judge in to_review and bool(list(_raised(judge, to_review[judge])))
        state = (result.review or {}).get("state")
        one |= {"review": asks, "reviewed": state if asks and state in DECISIONS else None}
    if result.review and result.review["state"] == "rejected":
        result.objections += [f"{name}: rejected by {result.review['by']}" for name in result.review["raised"]]
    return result


def _repeated(one: dict[str, Any]) -> dict[str, Any]:
    return {name: one.get(name) for name in (*_REPEATED, "cost_usd", "rerun", "file")}


def _raised(judge: str, one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a judge said yes to, and why."""
    for name in one["fields"] if one["verdict"] else []:
        if one["verdict"][name]:
            yield f"{judge}.{name}", str(one["verdict"].get(f"justification_{name}", ""))[:500]


def _review(trial_dir: Path, judged: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """How a person's review of a trial stands; None when no judge asks for one."""
    raised = [name for judge, one in judged.items() for name, _ in _raised(judge, one)]
    if not raised:
        return None
    seen = seen_of(judged)
    reviews = read_json(trial_dir.parent.parent / REVIEWS)
    for review in reversed(reviews if isinstance(reviews, list) else []):
        is_of_this = isinstance(review, dict) and (review.get("trials") or {}).get(trial_dir.name) == seen
        if is_of_this and review.get("decision") in DECISIONS:
            own = {name: review.get(name) for name in ("by", "at", "note")}
            return {"state": review["decision"], **own, "raised": raised}
    return {"state": "awaiting", "by": None, "at": None, "note": None, "raised": raised}


def seen_of(judgements: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a review is of: each judgement that asks for one, by its time. A later judgement asks anew."""
    return {
        judge: one.get("finished_at")
        for judge, one in judgements.items()
        if one.get("effect") == JudgeEffect.review.name
        and one["verdict"]
        and any(value is True for value in one["verdict"].values())
    }
