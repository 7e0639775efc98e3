"""Fronts against the definition, row by row, on random tables; long tables against short ones."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.sweep import pareto


def brute(values):
    """The definition: a row stays unless another is no worse in every column and better in one (minima)."""
    return np.array([not ((values <= row).all(axis=1) & (values < row).any(axis=1)).any() for row in values], bool)


def rows_of(values, signs):
    keep = np.zeros(len(values), bool)
    keep[pareto.front_rows([np.ascontiguousarray(column) for column in values.T], signs)] = True
    return keep


#: _LONG, _SAMPLE_ROWS, _FEW: rejecting rows by a few good ones: off, and on for nearly every table, with a second look
#: at what is left; then by the plain function that few rows take
WAYS = [(10**9, 4096, 0), (30, 4096, 0), (30, 8, 0), (10**9, 4096, 256)]


def test_a_front_is_what_the_definition_says(monkeypatch):
    rng = np.random.default_rng(1)
    for trial in range(700):
        n, d = int(rng.integers(1, 200)), int(rng.integers(1, 6))
        signs = rng.choice([1.0, -1.0], d)
        values = rng.integers(0, rng.integers(2, 40), (n, d)).astype(float)  # many ties
        if trial % 3 == 0:
            values = rng.normal(size=(n, d))
        if trial % 7 == 0:
            values[rng.random((n, d)) < 0.1] = rng.choice([np.inf, -np.inf, 0.0, -0.0])
        expected = brute(values * signs)
        for way in WAYS:
            for name, value in zip(("_LONG", "_SAMPLE_ROWS", "_FEW"), way, strict=True):
                monkeypatch.setattr(pareto, name, value)
            assert (rows_of(values, signs) == expected).all(), (trial, way)


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 5))
def test_the_front_of_parts_fronts_is_the_front_of_all(seed, d, n_parts):
    values = np.random.default_rng(seed).integers(0, 25, (120, d)).astype(float)
    signs = [1.0] * d
    parts = np.array_split(np.arange(len(values)), n_parts)
    kept = np.concatenate([part[rows_of(values[part], signs)] for part in parts])
    merged = set(kept[rows_of(values[kept], signs)].tolist())
    assert merged == set(np.flatnonzero(rows_of(values, signs)).tolist())


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 9))
def test_rivals_leave_what_the_front_of_both_has(seed, d, n_rivals):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 9, (80 + n_rivals, d)).astype(float)
    names = [f"o{i}" for i in range(d)]
    table, rivals = (pd.DataFrame(part, columns=names) for part in (values[n_rivals:], values[:n_rivals]))
    senses = {name: ("min", "max")[i % 2] for i, name in enumerate(names)}
    signs = np.array([1.0 if sense == "min" else -1.0 for sense in senses.values()])
    assert pareto.front(table, senses, rivals=rivals).tolist() == brute(values * signs)[n_rivals:].tolist()


def test_a_long_table_where_everything_is_on_the_front():
    x = np.random.default_rng(0).permutation(250_000).astype(float)
    assert len(pareto.front_rows([x, x], [1.0, -1.0])) == len(x)
    assert len(pareto.front_rows([x, x % 7, -x - 7 * (x % 7)], [1.0, 1.0, 1.0])) == len(x)


def test_a_long_table_by_hand():
    """A hyperbola of 9 rows among 200,000 worse ones: (1, 9), (2, 8), ..., each plus noise above."""
    rng = np.random.default_rng(0)
    good = np.array([(i, 10 - i) for i in range(1, 10)], float)
    bad = good[rng.integers(0, 9, 200_000)] + rng.uniform(0.01, 5, (200_000, 2))
    table = pd.DataFrame(np.vstack([bad[:77], good, bad[77:]]), columns=["cost", "loss"])
    mask = pareto.front(table, {"cost": "min", "loss": "min"})
    assert np.flatnonzero(mask).tolist() == list(range(77, 86))


def test_ties_are_kept_and_senses_mix():
    table = pd.DataFrame({"speed": [3, 3, 2, 1], "bits": [4.0, 4.0, 2.0, 2.0]})
    assert pareto.front(table, {"speed": "max", "bits": "min"}).tolist() == [True, True, True, False]
    assert pareto.front(table, {"speed": "max"}).tolist() == [True, True, False, False]


def test_groups_compete_among_themselves():
    table = pd.DataFrame({"model": ["a", "b", "a", "b"], "speed": [1.0, 5.0, 2.0, 4.0]})
    assert pareto.front(table, {"speed": "max"}, by=["model"]).tolist() == [False, True, True, False]


def test_designs_that_do_not_fit_are_left_out():
    table = pd.DataFrame({"feasible": [True, False, True], "speed": [1.0, None, 2.0]})
    assert pareto.front(table, {"speed": "max"}).tolist() == [False, False, True]
    assert pareto.front(table, {"speed": "max"}, by=["feasible"]).tolist() == [False, False, True]
    assert pareto.front(table[table["speed"] > 9], {"speed": "max"}).tolist() == []


@pytest.mark.parametrize(
    ("objectives", "by", "message"),
    [
        ({"sped": "max"}, (), "did you mean speed"),
        ({"speed": "largest"}, (), "must be min or max"),
        ({"name": "min"}, (), "is not a column of numbers"),
        ({"late": "min"}, (), "row 1: late is missing"),
        ({"speed": "max"}, ("nam",), "did you mean name"),
        ({}, (), "none given"),
    ],
)
def test_bad_objectives_are_one_line(objectives, by, message):
    table = pd.DataFrame({"speed": [1.0, 2.0], "name": ["a", "b"], "late": [1.0, np.nan]})
    with pytest.raises(InputError) as caught:
        pareto.front(table, objectives, by)
    assert message in str(caught.value)
    assert len(caught.value.lines()) == 1
