"""Lengths of a burst, against their distributions."""

from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest

from dse.serving import burst


def test_lengths_of_a_burst_spread_as_they_say():
    """Prompts log-normal with a spread of 1.3, answers that end at a constant rate: quantiles by hand."""
    prompts, answers = burst.varied_lengths(20_000, 200, 200, 100_000)
    assert np.mean(prompts) == pytest.approx(200, rel=2e-3)
    assert np.mean(answers) == pytest.approx(200, rel=2e-3)
    # below the longest: P84 over the median is exp(1.3), P97.7 exp(2.6)
    low, middle = np.quantile(prompts, [NormalDist().cdf(-1), 0.5])
    assert middle / low == pytest.approx(np.exp(1.3), rel=0.03)
    assert prompts.max() == burst.LONGEST_TOKENS
    # an exponential's median is ln 2 of its mean, its standard deviation the mean
    assert np.median(answers) == pytest.approx(np.log(2) * 200, rel=0.01)
    assert np.std(answers) == pytest.approx(200, rel=0.02)
    # one is drawn beside the other
    assert abs(np.corrcoef(prompts, answers)[0, 1]) < 3 / sqrt(20_000)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_the_inverse_of_the_error_function(share):
    found = burst._inverse_erf(np.array([2 * share - 1]))[0] * sqrt(2)
    assert found == pytest.approx(NormalDist().inv_cdf(share), rel=5e-3, abs=1e-12)
