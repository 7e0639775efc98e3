"""Errors of a fit by size class."""

import numpy as np
import pytest

from dse.calibrate.fit import errors_by_class
from dse.calibrate.formulas import Problem


def test_products_of_256_rows_are_those_of_decoding_and_larger_ones_are_not():
    """Off by 10 % at 1 and at 256 rows, by 50 % at 257: decoding is off by 10 %. A row far off counts in `every`."""
    measured = np.ones(4)
    rows = Problem(
        "gemm",
        measured_s=measured,
        naive_s=measured * 2,
        fixed={"m_rows": np.array([1, 256, 257, 8])},
        in_cache=np.zeros(4, bool),
        large=np.array([False, True, True, False]),
        serving=np.array([True, False, False, False]),
    )
    held, far = np.ones(4, bool), np.array([False, False, False, True])
    found = errors_by_class(rows, np.array([1.1, 0.9, 1.5, 3.0]), held, far)
    assert {name: own["rows"] for name, own in found.items()} == {"all": 2, "large": 2, "serving": 1, "every": 3}
    assert found["all"]["mean"] == pytest.approx(0.1)
    assert found["large"]["mean"] == pytest.approx(0.3)
    assert found["every"]["mean"] == pytest.approx((0.1 + 0.1 + 2) / 3)
    assert found["all"]["naive_mean"] == pytest.approx(1)
