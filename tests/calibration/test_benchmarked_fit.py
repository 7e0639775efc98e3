"""Factors of servers in public benchmarks: the shipped table says what the shipped files hold, and known factors are
found again."""

import numpy as np
import pytest

from calibration import benchmarked
from calibration.benchmarked import Rows
from cases import each
from dse.core import files, toml
from dse.specs import catalog
from dse.specs.quantity import ASSUMED

SHIPPED = {"dense_share": 1.0, "layer": 20.0}
TRUE = {"dense_share": 0.5, "layer": 40.0}


def drawn(n=400, seed=3):
    """Times of eight models on four devices that are linear in 1 / dense_share and in the layer, with one row in ten
    far off."""
    rng = np.random.default_rng(seed)
    slopes = np.column_stack((rng.uniform(0.1, 0.6, n), rng.uniform(0.0, 0.02, n)))
    times = 1 + slopes @ np.array([1 / TRUE["dense_share"] - 1, TRUE["layer"] - SHIPPED["layer"]])
    off = np.log(times) + rng.normal(0, 0.02, n) + (rng.random(n) < 0.1) * 0.5
    models, devices = rng.integers(0, 8, n).astype(str), rng.integers(0, 4, n).astype(str)
    return Rows(off, slopes, models, devices, np.array(["tpot", "ttft"])[rng.integers(0, 2, n)])


def test_known_numbers_are_found_again_and_stay_as_models_and_devices_are_left_out():
    found = benchmarked.fit(drawn(), SHIPPED)
    for name, value in TRUE.items():
        assert found.numbers[name] == pytest.approx(value, rel=0.08)
        assert found.low[name] <= found.numbers[name] <= found.high[name]
        assert found.high[name] / found.low[name] < 1.2
    assert found.counts == "400 times of 8 models on 4 devices"
    assert found.errors["tpot, seen"] <= found.errors["tpot, model"]
    assert found.spread["low"] <= 1 <= found.spread["high"]


def test_the_shipped_table_says_what_the_shipped_files_hold():
    for name, text in benchmarked.written(benchmarked.fit_all()).items():
        assert files.read_bytes(benchmarked.FOLDER / f"{name}.toml").decode() == text


def test_a_number_is_assumed_unless_the_fit_says_it():
    fits = benchmarked.fit_all()
    data = benchmarked.shipped()
    for place, found in fits.items():
        block = data["kernels"] if place[0] == "kernels" else data[place[0]][place[1]]
        for name, value in found.numbers.items():
            is_fitted = float(f"{value:.2g}") == block[name]["value"]
            assert (block[name]["kind"] == ASSUMED) is not is_fitted, (place, name)
    taken = benchmarked.written(fits, take=True)["kernels"]
    assert ASSUMED not in taken
    assert f"{fits['kernels', 'unpacked'].numbers['unpacked_share']:.2g}" in taken


@each("stack", ("vllm", "sglang"))
def test_numbers_that_no_benchmark_says_are_assumed(stack):
    for kind, public in catalog.benchmarked(stack).items():
        held = public.quantities().keys() - benchmarked.FREE[stack, kind]
        assert held
        assert all(public.quantities()[name].kind == ASSUMED for name in held)


def test_files_read_back_as_they_are_written(tmp_path):
    data = benchmarked.shipped()
    for name, block in data.items():
        assert toml.dumps(block) in files.read_bytes(benchmarked.FOLDER / f"{name}.toml").decode()


def test_the_table_has_its_columns_and_no_times():
    """Ratios and slopes alone: the benchmarks themselves do not ship."""
    head, *lines = files.read_bytes(benchmarked.DERIVED).decode().splitlines()
    assert head.split(",")[: len(benchmarked.COLUMNS)] == list(benchmarked.COLUMNS)
    rows = benchmarked.read()
    assert sum(len(own.off) for own in rows.values()) == len(lines)
    for (name, table), own in rows.items():
        if name != "kernels":
            counts = catalog.benchmarked(name)[table].rows.values()
            assert len(own.off) <= 2 * sum(sum(by_code.values()) for by_code in counts)
            assert len(set(own.models.tolist())) > 1
