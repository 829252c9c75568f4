"""What paired differences say about the difference behind them: tests, intervals, and what could have been seen.

Everything comes from two functions of a difference: `above`, the p-value for "the difference is at most this", and
`below`, for "it is at least this". So an interval, a test of no difference, a test for equivalence and a gate never
contradict each other.

Scores are tested by flipping the signs of the differences (exactly up to 14 of them, else with 20,000 drawn flips).
Passes and failures are tested with McNemar's exact test, which is the same for them, and have Tango's score interval,
because no difference at all in n pairs does not show that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

EXACT, DRAWN = 14, 20_000  # differences whose flips are all looked at; flips that are drawn for more
POWER = 0.8
BLOCK = 2_000_000  # numbers in memory at once
RESAMPLES, LEAST_FOR_BOOTSTRAP = 9_999, 10  # a bootstrap of fewer pairs promises more than it holds


@dataclass(frozen=True)
class Evidence:
    """About the mean difference of `n` pairs: `estimate`, and p-values as functions of a difference."""

    n: int
    estimate: float
    above: Callable[[float], float]
    below: Callable[[float], float]
    reach: float  # beyond this no difference is looked for
    smallest_p: float  # the smallest two-sided p-value that n pairs can come to
    mcnemar: bool  # whether it is McNemar's exact test with Tango's score test beside it

    @property
    def p(self) -> float:
        """The two-sided p-value for "there is no difference"."""
        return min(1.0, 2 * min(self.above(0.0), self.below(0.0)))

    def interval(self, alpha: float) -> tuple[float | None, float | None]:
        """The differences that are not ruled out at `alpha`; None for an end that so few pairs leave open."""
        low = _end(self.above, alpha / 2, -self.reach, self.reach)
        high = _end(self.below, alpha / 2, self.reach, -self.reach)
        if self.mcnemar:  # shares differ by 1 at most
            low, high = -1.0 if low is None else low, 1.0 if high is None else high
        if self.p > alpha:  # no difference has an exact test of its own, and is not ruled out either
            low, high = low and min(low, 0.0), high and max(high, 0.0)
        return low, high

    def p_equivalent(self, margin: float) -> float:
        """The p-value for "the difference is beyond ±margin": two one-sided tests, the larger one."""
        return max(self.above(-margin), self.below(margin))


def _end(p: Callable[[float], float], level: float, outer: float, inner: float) -> float | None:
    """Where a p-value that grows from `outer` to `inner` comes above `level`."""
    if p(outer) > level:
        return None
    for _ in range(60):
        middle = (outer + inner) / 2
        outer, inner = (outer, middle) if p(middle) > level else (middle, inner)
    return inner


def evidence(differences: Sequence[float], weights: Sequence[float], pass_fail: bool) -> Evidence:
    """What one difference a pair says about the weighted mean difference.

    `pass_fail` says that what was compared are passes and failures, or shares of them. Raises ValueError where there
    is no pair.
    """
    import numpy as np

    x, w = np.asarray(differences, float), np.asarray(weights, float)
    if not len(x):
        raise ValueError("no pair")
    w = w / w.sum()
    single = pass_fail and set(x.tolist()) <= {-1.0, 0.0, 1.0} and np.allclose(w, w[0])
    tests = [_passes(int((x == 1).sum()), int((x == -1).sum()), len(x)) if single else _signs(x, w)]
    if not single and not x.any():  # what never differed is no proof that it cannot
        tests.append(_tango(0, 0, len(x)))
    return Evidence(
        n=len(x),
        estimate=float(w @ x),
        above=lambda value: max(above(value) for above, _ in tests),
        below=lambda value: max(below(value) for _, below in tests),
        reach=1 - 1e-9 if single else float(2 * np.abs(x).max() + 1),
        smallest_p=min(1.0, 2.0 ** (1 - len(x))),
        mcnemar=bool(single),
    )


Tests = tuple[Callable[[float], float], Callable[[float], float]]


def _signs(x: Any, w: Any) -> Tests:
    """Sign flips: for the set of flipped pairs, the flipped sum of weight * (x - value) against the sum as it is.

    A flip reaches the sum exactly if the flipped part is not above 0, so each flip has to be summed only once.
    """
    import numpy as np

    columns = np.column_stack([w * x, w])
    sums, parts = np.concatenate([flips @ columns for flips in _flips(len(x))]).T
    slack = 1e-12 * (1 + np.abs(w * x).sum())

    def above(value: float) -> float:
        return float(np.mean(sums - value * parts <= slack))

    def below(value: float) -> float:
        return float(np.mean(sums - value * parts >= -slack))

    return above, below


def _flips(n: int) -> Iterator[Any]:
    """Which of n signs to flip, 1 or 0, a row a set: every set, or drawn ones beside that which flips none."""
    import numpy as np

    if n <= EXACT:
        yield (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return
    random, at_once = np.random.default_rng(0), max(1, BLOCK // n)
    yield np.zeros((1, n))
    for start in range(1, DRAWN, at_once):
        yield random.integers(0, 2, (min(at_once, DRAWN - start), n), dtype=np.int8)


def _passes(gained: int, lost: int, n: int) -> Tests:
    """Tango's score test of a difference; of none also McNemar's exact test, whichever claims less."""
    from scipy.stats import binom

    above, below = _tango(gained, lost, n)
    exact = [float(binom.cdf(fewer, gained + lost, 0.5)) for fewer in (lost, gained)]
    return (
        lambda value: max(above(value), exact[0] if value == 0 else 0.0),
        lambda value: max(below(value), exact[1] if value == 0 else 0.0),
    )


def _tango(gained: int, lost: int, n: int) -> Tests:
    """Tango's score test (1998) for the difference of two paired shares: `gained` and `lost` of n pairs differ."""
    from scipy.special import ndtr

    def z(value: float) -> float:
        value = min(max(value, -1 + 1e-12), 1 - 1e-12)
        half = (2 * n - gained + lost) * value - gained - lost
        root = math.sqrt(max(half * half + 8 * n * lost * value * (1 - value), 0.0))
        share = max((root - half) / (4 * n), 0.0, -value)  # of losses, at its likeliest for this difference
        spread = n * (2 * share + value * (1 - value))
        excess = gained - lost - n * value
        return 0.0 if excess == 0 else excess / math.sqrt(spread) if spread > 0 else math.copysign(math.inf, excess)

    return lambda value: float(ndtr(-z(value))), lambda value: float(ndtr(z(value)))


def bootstrap(differences: Sequence[float], weights: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """The bias-corrected and accelerated bootstrap interval; None for few pairs, or where they do not vary."""
    import numpy as np
    from scipy import stats

    x, w = np.asarray(differences, float), np.asarray(weights, float)
    if len(x) < LEAST_FOR_BOOTSTRAP or np.ptp(x) == 0:
        return None

    def mean(x: Any, w: Any, axis: int = -1) -> Any:
        return (x * w).sum(axis) / w.sum(axis)

    found = stats.bootstrap(
        (x, w),
        mean,
        paired=True,
        n_resamples=RESAMPLES,
        batch=max(1, BLOCK // len(x)),
        confidence_level=1 - alpha,
        rng=np.random.default_rng(0),
    ).confidence_interval
    ends = float(found.low), float(found.high)
    return ends if all(map(math.isfinite, ends)) else None


def detectable(differences: Sequence[float], weights: Sequence[float], pass_fail: bool, alpha: float) -> float | None:
    """The smallest mean difference that such pairs would show with 80% power, from their spread.

    None where so few pairs can show none, or where they do not vary and nothing else is known of them.
    """
    import numpy as np
    from scipy import optimize, stats

    x, w = np.asarray(differences, float), np.asarray(weights, float)
    n = len(x)
    if n == 0 or 2.0 ** (1 - n) > alpha:
        return None
    least = 0.0
    if pass_fail:  # even if all pairs that differ went one way, so many would have to
        needed = math.ceil(1 - math.log2(alpha))
        least = float(stats.beta.ppf(POWER, needed, n - needed + 1))
    error = x.std(ddof=1) * math.sqrt((w**2).sum()) / w.sum()
    if error == 0:
        return least or None
    critical = stats.t.ppf(1 - alpha / 2, n - 1)
    shift = optimize.brentq(lambda shift: stats.nct.sf(critical, n - 1, shift) - POWER, 0.1, critical + 20)
    return max(least, float(shift * error))
