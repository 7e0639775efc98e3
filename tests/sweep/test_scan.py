"""Sweeps that are reduced as they go, against the table of the same sweep."""

import numpy as np
import pytest

from dse.core.errors import InputError
from dse.model import many
from dse.sweep import points as sweep_points
from dse.sweep import scan as sweep_grid
from dse.sweep import spec as sweep_spec

AXES = {
    "device": ["h100", "oaken-hbm"],
    "model_kind": "ideal",
    "model": ["llama2-70b", "llama3-8b"],
    "quantizer": ["fp16", "oaken", "kivi"],
    "admission": ["reserve", "paged"],
    "input_tokens": [100, 6000],
    "output_tokens": 300,
    "batch": [1, 300, 2, *range(5, 290, 2)],
}


def table(axes):
    """Columns by the evaluation row by row, a line for every combination of all but the batch."""
    sweep = sweep_spec.from_dict({"axes": axes, "keep": [*many.SCANNED, "max_batch"]})
    columns = sweep_points.evaluate_rows(sweep, sweep_points.kept_digits(sweep, 0, sweep.n_points))
    return {name: column.reshape(-1, len(axes["batch"])) for name, column in columns.items()}


def test_best_and_counts_are_those_of_the_table():
    axes = {**AXES, "batch": AXES["batch"][:9]}
    grid = sweep_grid.of_sweep(sweep_spec.from_dict({"axes": axes}))
    best, at_once = sweep_grid.scan(grid)
    expected = table(axes)
    assert best.tolist() == np.nan_to_num(expected["throughput_tokens_per_s"]).max(axis=1).tolist()
    whole = (expected["running_batch"] == np.array(axes["batch"])) & expected["feasible"]
    assert at_once.tolist() == whole.sum(axis=1).tolist()
    assert (at_once == 0).any()  # 70 billion parameters of 16 bits: 140 GB of weights in 80 GB


def test_any_number_of_threads_gives_the_same_bits():
    grid = sweep_grid.of_sweep(sweep_spec.from_dict({"axes": AXES}))
    assert grid.n_points == 2 * 2 * 3 * 2 * 2 * len(AXES["batch"])
    one = sweep_grid.scan(grid)
    for threads in (2, 4, 100):
        more = sweep_grid.scan(grid, threads)
        assert [column.tobytes() for column in more] == [column.tobytes() for column in one]


def test_columns_are_those_of_the_table():
    """More batches than a run holds, one combination: the first of the buffer are its points, in order."""
    batch = list(range(1, 301))
    axes = {
        **AXES,
        "device": ["h100"],
        "model": ["llama3-8b"],
        "admission": ["reserve"],
        "input_tokens": [6000],
        "quantizer": ["kivi"],
        "batch": batch,
    }
    grid = sweep_grid.of_sweep(sweep_spec.from_dict({"axes": axes}))
    buffer = np.full((len(many.SCANNED), sweep_grid.BUFFER_POINTS), np.nan)
    sweep_grid.scan(grid, 1, [buffer])
    expected = table(axes)
    for found, name in zip(buffer, many.SCANNED, strict=True):
        assert found[:300].tolist() == expected[name][0].astype(float).tolist(), name
    assert np.isnan(buffer[:, 300:]).all()


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"tokens": [policy, "full"]}
            for policy in ("streaming", "window:tokens=300", "snapkv:budget=64", "h2o", "sparse:k=64", "constant:c=64")
        ),
        {"prefix_tokens": [0, 10, 100]},
        {"kv_cache": [False, True], "quantizer": "fp16", "admission": "reserve"},  # the only ones without a cache
        {"tokens": "snapkv", "prefix_tokens": [0, 90]},
    ],
    ids=str,
)
def test_policies_prefixes_and_no_cache_are_scanned_with_the_numbers_of_the_table(change):
    """Best and counts of every combination, and in the buffer every point of those in which anything runs."""
    axes = {
        "device": ["h100", "oaken-hbm"],
        "model_kind": "ideal",
        "model": ["llama2-70b", "llama3-8b"],
        "quantizer": ["fp16", "kivi"],
        "admission": ["reserve", "paged"],
        "input_tokens": [100, 6000],
        "output_tokens": 40,
        **change,
        "batch": [1, 2, 7, 40, 300],
    }
    grid = sweep_grid.of_sweep(sweep_spec.from_dict({"axes": axes}))
    buffer = np.full((len(many.SCANNED), sweep_grid.BUFFER_POINTS), np.nan)
    best, at_once = sweep_grid.scan(grid, 1, [buffer])
    expected = table(axes)
    assert best.tolist() == np.nan_to_num(expected["throughput_tokens_per_s"]).max(axis=1).tolist()
    whole = (expected["running_batch"] == np.array(axes["batch"])) & expected["feasible"]
    assert at_once.tolist() == whole.sum(axis=1).tolist()
    runs = expected["feasible"].any(axis=1)
    assert runs.any()
    assert not runs.all()
    n = runs.sum() * len(axes["batch"])
    for found, name in zip(buffer, many.SCANNED, strict=True):
        assert found[:n].tolist() == expected[name][runs].ravel().astype(float).tolist(), name
    assert np.isnan(buffer[:, n:]).all()


def test_a_grid_needs_a_batch_that_is_free():
    axes = {"device": "h100", "model": "llama3-8b", "model_kind": "ideal"}
    with pytest.raises(InputError, match="batch"):
        sweep_grid.of_sweep(sweep_spec.from_dict({"axes": axes}))
    with pytest.raises(InputError, match="batch"):
        sweep_grid.of_sweep(sweep_spec.from_dict({"axes": {**axes, "batch": [1, 2]}, "where": ["batch > 1"]}))
