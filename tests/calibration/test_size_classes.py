"""Errors of a fit by size class."""

import numpy as np
import pytest

from dse.calibrate.fit import errors_by_class
from dse.calibrate.formulas import Problem, problem
from dse.calibrate.table import Table
from dse.specs import catalog


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


def test_attention_over_64_mb_is_large_and_of_8_sequences_of_256_tokens_what_serving_is():
    """A row at each edge, and one just below it in each of what it is judged by; an A100's cache holds 40 MB."""
    names = ("kv_bytes", "batch", "kv_len_tokens", "n_kv_heads")
    rows = [(64e6, 8, 256, 8), (64e6 - 1, 8, 256, 8), (64e6, 7, 256, 10), (64e6, 8, 255, 8), (64e6, 8, 256, 7)]
    columns = dict(zip(names, np.array(rows, float).T, strict=True))
    same = {"n_q_heads": 32.0, "head_dim": 128.0, "latency_us": 100.0}
    text = np.array(["fp16"] * len(rows))
    table = Table(
        "some.csv",
        "attention",
        np.arange(len(rows)),
        columns | {name: np.full(len(rows), value) for name, value in same.items()},
        *(text, text, text),
    )
    found = problem(table, catalog.device("a100-80gb"))
    assert found.large.tolist() == [True, False, True, True, True]
    assert found.serving.tolist() == [True, False, False, False, False]
