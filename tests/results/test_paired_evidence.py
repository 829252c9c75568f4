"""The statistics against other computations of them, and against simulated data of which the truth is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ptb_runner.results.evidence import bootstrap, detectable, evidence

FEW = [0.12, -0.05, 0.3, 0.07, 0.22, -0.01, 0.16]


def even(values: Sequence[float] | np.ndarray) -> list[float]:
    return [1.0] * len(values)


def flipped_p(values: list[float], weights: list[float]) -> float:
    """Two-sided sign-flip p-value by brute force."""
    sums = [
        sum(sign * w * x for sign, w, x in zip(signs, weights, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    return sum(abs(one) >= abs(sums[0]) - 1e-12 for one in sums) / len(sums)


# --- Scores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [even(FEW), [3, 1, 1, 2, 0.5, 0.25, 1]], ids=["even", "weighted"])
def test_sign_flips_against_enumeration(weights):
    found = evidence(FEW, weights, False)
    assert found.p == pytest.approx(flipped_p(FEW, weights))
    assert found.estimate == pytest.approx(np.average(FEW, weights=weights))


def test_sign_flips_against_scipy_and_against_wilcoxons_ranks():
    by_scipy = stats.permutation_test((np.array(FEW),), np.mean, permutation_type="samples", n_resamples=2**7)
    assert evidence(FEW, even(FEW), False).p == pytest.approx(by_scipy.pvalue)
    ranks = stats.rankdata(np.abs(FEW)) * np.sign(FEW)
    by_ranks: Any = stats.wilcoxon(FEW, method="exact")
    assert evidence(list(ranks), even(FEW), False).p == pytest.approx(by_ranks.pvalue)


def test_the_interval_is_what_the_test_does_not_rule_out():
    found = evidence(FEW, even(FEW), False)
    low, high = found.interval(0.05)
    assert low is not None
    assert high is not None
    for inside, outside in ((low + 1e-6, low - 1e-6), (high - 1e-6, high + 1e-6)):
        assert flipped_p([x - inside for x in FEW], even(FEW)) > 0.05
        assert flipped_p([x - outside for x in FEW], even(FEW)) <= 0.05
    assert low > 0 or found.p > 0.05


def test_too_few_pairs_show_nothing():
    found = evidence([0.5] * 5, even([0] * 5), False)
    assert found.smallest_p == found.p == 2 / 32
    assert found.interval(0.05) == (None, None)
    assert detectable([0.5, 0.4, 0.1, 0.2, 0.3], even([0] * 5), False, 0.05) is None
    assert evidence([0.5] * 6, even([0] * 6), False).p == pytest.approx(2 * stats.norm.sf(math.sqrt(6)), abs=0.05)


def test_many_pairs_are_near_students_t():
    values = np.random.default_rng(1).normal(0.03, 0.1, 40)
    found = evidence(list(values), even(values), False)
    reference: Any = stats.ttest_1samp(values, 0)
    assert found.p == pytest.approx(reference.pvalue, abs=0.01)
    assert found.interval(0.05) == pytest.approx(tuple(reference.confidence_interval(0.95)), abs=0.005)
    assert bootstrap(list(values), even(values), 0.05) == pytest.approx(found.interval(0.05), abs=0.01)


def test_intervals_cover_the_truth_as_often_as_they_say():
    """150 samples of 8 differences each, normal and with heavy tails; 95% of 150 within three standard deviations."""
    random = np.random.default_rng(2)
    for draw in (lambda: random.normal(0.1, 0.2, 8), lambda: random.laplace(0.1, 0.2, 8)):
        hits = 0
        for _ in range(150):
            low, high = evidence(list(draw()), even([0] * 8), False).interval(0.05)
            hits += (low or -9) <= 0.1 <= (high or 9)
        assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 150) <= hits / 150


# --- Pass and fail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gained", "lost", "n"), [(9, 1, 14), (3, 2, 12), (0, 6, 30), (10, 2, 40)])
def test_pass_and_fail_against_mcnemars_exact_test(gained, lost, n):
    values = [1.0] * gained + [-1.0] * lost + [0.0] * (n - gained - lost)
    exact = stats.binomtest(gained, gained + lost).pvalue
    score = 2 * stats.norm.sf(abs(gained - lost) / math.sqrt(gained + lost))
    assert evidence(values, even(values), True).p == pytest.approx(max(exact, score))
    # It is what flipping signs comes to; beyond 14 pairs the flips are drawn: 20,000 of them.
    assert evidence(values, even(values), False).p == pytest.approx(exact, abs=1e-9 if n <= 14 else 0.01)


def test_no_pair_that_differs_does_not_show_that_none_can():
    z2 = stats.norm.ppf(0.975) ** 2
    for n in (10, 50):
        low, high = evidence([0.0] * n, even([0] * n), True).interval(0.05)
        assert (low, high) == (pytest.approx(-z2 / (n + z2)), pytest.approx(z2 / (n + z2)))  # Tango's closed form
    low, high = evidence([-1.0] * 7, even([0] * 7), True).interval(0.05)
    assert (low, high) == (-1.0, pytest.approx(-0.2913, abs=1e-4))
    clustered = evidence([0.0] * 9 + [0.5], even([0] * 10), True)  # shares of passes, two trials a task
    assert clustered.p_equivalent(0.05) > 0.05
    assert evidence([0.0] * 20, even([0] * 20), False).p_equivalent(0.05) > 0.05  # scores that never varied


def test_pass_and_fail_intervals_cover_the_truth():
    """All outcomes of 20 pairs, each with its probability: how often the interval holds the difference."""
    n, gain, loss = 20, 0.25, 0.1
    covered = 0.0
    for gained, lost in itertools.product(range(n + 1), repeat=2):
        if gained + lost <= n:
            values = [1.0] * gained + [-1.0] * lost + [0.0] * (n - gained - lost)
            low, high = evidence(values, even(values), True).interval(0.05)
            chance = stats.multinomial.pmf([gained, lost, n - gained - lost], n, [gain, loss, 1 - gain - loss])
            covered += chance * ((low or -1) <= gain - loss <= (high or 1))
    assert 0.93 <= covered <= 0.98


# --- Equivalence and power ----------------------------------------------------------------------------


def test_equivalence_at_the_edge_is_claimed_no_more_often_than_alpha():
    """1,000 samples whose true difference is just the margin."""
    random, margin = np.random.default_rng(3), 0.1
    claimed = sum(
        evidence(list(random.normal(margin, 0.05, 12)), even([0] * 12), False).p_equivalent(margin) <= 0.05
        for _ in range(1000)
    )
    assert 0.02 <= claimed / 1000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_equivalence_is_shown_where_it_holds_and_enough_was_tried():
    values = list(np.random.default_rng(4).normal(0.0, 0.02, 12))
    assert evidence(values, even(values), False).p_equivalent(0.05) <= 0.05
    assert evidence(values[:4], even(values[:4]), False).p_equivalent(0.05) > 0.05


def test_the_detectable_difference_is_detected_four_times_in_five():
    random = np.random.default_rng(5)
    spread = random.normal(0, 1, 12)
    sample = list(0.1 * (spread - spread.mean()) / spread.std(ddof=1))  # a standard deviation of just 0.1
    size = detectable(sample, even(sample), False, 0.05)
    assert size is not None
    samples = [list(random.normal(size, 0.1, 12)) for _ in range(400)]
    shown = sum(evidence(one, even(one), False).p <= 0.05 for one in samples)
    assert shown / 400 == pytest.approx(0.8, abs=0.06)


def test_the_detectable_difference_of_passes_that_never_differed():
    size = detectable([0.0] * 30, even([0] * 30), True, 0.05)
    assert size is not None
    assert stats.binom.sf(5, 30, size) == pytest.approx(0.8)  # six that all go one way are the fewest that show it
    assert detectable([0.0] * 30, even([0] * 30), False, 0.05) is None
