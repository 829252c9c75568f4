"""A gate for CI: a policy file says, tier by tier, which drops are allowed, and a comparison passes or fails.

Nothing passes by absence: a tier that nothing was compared in fails, and so does one with less coverage than asked.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ptb_runner.explain import UsageError, nearest
from ptb_runner.results.compare import Comparison, check_scale, units_of
from ptb_runner.results.pairs import Pair
from ptb_runner.results.settings import Settings

Share = Annotated[float, Field(ge=0, le=1)]
Patterns = Annotated[list[str], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Tier(_Strict):
    """Some benchmarks, models and tasks (shell patterns), and what may happen to them.

    `allowed_drop` is the most that the mean may fall. `proof` says when it holds: `noninferior`, when a larger drop is
    ruled out; `not_worse`, unless a larger drop is shown; `estimate`, when the measured drop is no larger.
    `allowed_losses` is the number of trials that may fail after having passed.
    """

    name: str
    benchmarks: Patterns = ["*"]
    models: Patterns = ["*"]
    tasks: Patterns = ["*"]
    allowed_drop: Annotated[float, Field(ge=0)] | None = None
    proof: Literal["noninferior", "not_worse", "estimate"] = "noninferior"
    allowed_losses: Annotated[int, Field(ge=0)] | None = None
    min_coverage: Share = 1.0

    @model_validator(mode="after")
    def _says_something(self) -> Tier:
        if self.allowed_drop is None and self.allowed_losses is None:
            raise ValueError("needs allowed_drop, allowed_losses, or both")
        return self

    def holds(self, one: Pair) -> bool:
        """Whether the tier is about a pair."""
        names = ((one.benchmark, self.benchmarks), (one.model, self.models), (one.task, self.tasks))
        return all(any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name, patterns in names)


class Policy(_Strict):
    """The whole file. `require_parity`: parity must be shown; `same_settings`: keys (patterns) that may not differ."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    margin: Annotated[float, Field(gt=0)] | None = None
    require_parity: bool = False
    same_settings: list[str] = []
    tiers: list[Tier] = []

    @model_validator(mode="after")
    def _says_something(self) -> Policy:
        if not self.tiers and not self.require_parity and not self.same_settings:
            raise ValueError("asks for nothing: give tiers, same_settings or require_parity")
        return self


@dataclass(frozen=True)
class Check:
    """One thing that a policy asks for, and whether it holds."""

    what: str
    passed: bool
    found: str


def read_policy(path: Path) -> Policy:
    """Read a policy file. Raises UsageError with the file, the key and what is allowed."""
    try:
        content = yaml.load(path.read_text(), yaml.CSafeLoader)
    except OSError as error:
        raise UsageError(f"{path}: not readable: {error.strerror}\n  --gate takes a policy file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {_told(error.errors(include_url=False)[0])}") from None


def _told(error: Any) -> str:
    """The first fault of a policy, for the person who wrote it."""
    *place, key = error["loc"] or ("",)
    allowed = list((Tier if "tiers" in place else Policy).model_fields)
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        guess = nearest(str(key), allowed)
        hint = f"did you mean {guess}? " if guess else ""
        return f"{where}: there is no such key\n  {hint}allowed here: {', '.join(allowed)}"
    if error["type"] == "value_error":
        return f"{where or 'the policy'}: {error['ctx']['error']}"
    if error["type"] in _WANTED:
        return f"{where or 'the policy'}: must be {_WANTED[error['type']]}"
    return f"{where or 'the policy'}: {error['msg']}"


_WANTED = {
    "list_type": "a list, such as [hello]",
    "model_type": "a table of keys with their values; docs/compare.md shows one",
    "missing": "there, and is not",
}


def check(policy: Policy, found: Comparison, settings: Settings, parity: tuple[bool, str] | None) -> list[Check]:
    """What the policy asks of one comparison."""
    checks = [one for tier in policy.tiers for one in _tier(tier, found)]
    checks += [_same(pattern, settings) for pattern in policy.same_settings]
    if policy.require_parity:
        shown, text = parity or (False, "not looked at: add --parity")
        checks.append(Check("parity", shown, text))
    return checks


def _same(pattern: str, settings: Settings) -> Check:
    """Whether all settings of a name are known of every cell, and alike."""
    odd = fnmatch.filter([one.key for one in settings.differ], pattern)
    if odd:
        text = f"differ: {', '.join(odd)}"
    elif settings.unknown:
        text = f"not known of {', '.join(settings.unknown)}"
    elif not fnmatch.filter(settings.compared, pattern):
        guess = nearest(pattern, settings.compared)
        text = f"no setting that both sides have is called so{f'; did you mean {guess}?' if guess else ''}"
    else:
        return Check(f"same settings: {pattern}", True, "alike")
    return Check(f"same settings: {pattern}", False, text)


def _tier(tier: Tier, found: Comparison) -> list[Check]:
    pairs = [one for one in found.paired.pairs if tier.holds(one)]
    whole = [one for one in pairs if one.difference is not None]
    coverage = len(whole) / len(pairs) if pairs else 0.0
    text = f"{len(whole)}/{len(pairs)} pairs" if pairs else "nothing was compared in it"
    name = f"tier {tier.name}"
    checks = [
        Check(f"{name}: coverage {tier.min_coverage:g} or more", bool(whole) and coverage >= tier.min_coverage, text)
    ]
    if tier.allowed_losses is not None:
        lost = sum(tier.holds(one) for one in found.lost)
        checks.append(
            Check(f"{name}: losses {tier.allowed_losses} or fewer", lost <= tier.allowed_losses, f"{lost} lost")
        )
    if tier.allowed_drop is not None:
        checks.append(_drop(tier, found, pairs))
    return checks


def _drop(tier: Tier, found: Comparison, pairs: list[Pair]) -> Check:
    """Whether the mean fell no further than allowed, by the proof that the tier asks for."""
    check_scale(f"tier {tier.name}: allowed_drop", tier.allowed_drop, pairs)
    units = units_of(found, pairs)
    what = f"tier {tier.name}: drop {tier.allowed_drop:g} or less ({tier.proof})"
    if units.evidence is None:
        return Check(what, False, "no trial has a value on both sides")
    known, limit = units.evidence, -(tier.allowed_drop or 0.0)
    text = f"{known.estimate:+.4f} over {known.n} {units.over}"
    if tier.proof == "estimate":
        return Check(what, known.estimate >= limit - 1e-12, text)
    if tier.proof == "not_worse":
        p = known.below(limit)
        return Check(what, p > found.rules.alpha, f"{text}, p = {p:.4f} for a larger drop")
    p = known.above(limit)
    return Check(what, p <= found.rules.alpha, f"{text}, p = {p:.4f} against a drop as large")
