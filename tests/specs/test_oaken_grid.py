"""Oaken's parameters as measured on the sample that ships: made as the file says, found by name, and only there."""

import itertools
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest

from dse import data, quantizers
from dse.model import kv_layout as plan
from dse.model.engine import evaluate
from dse.model.explain import explained
from dse.model.point import Point
from dse.specs import measurements
from dse.specs.workload import Workload
from factories import device, layer, model
from scripts import oaken_grid as kv_sample_grid

CLOSED, MEASURED = measurements.CLOSED, measurements.Bits("measured")


def point_of(bits, name):
    spec = bits.quantizer(name)
    return Point(device(), plan.build(model(layer(n_layers=4, n_kv_heads=8, dim=64)), spec, spec), Workload())


def result(bits, name):
    return evaluate(point_of(bits, name))


def test_an_entry_is_what_the_sample_gives():
    name = "oaken:outer=0.1,inner=0.05,outlier_bits=4"
    rows = {row["which"]: row for row in kv_sample_grid.entry(name, *kv_sample_grid.samples())}
    found = CLOSED.quantizer(name).measured
    assert list(rows) == list(found) == ["key", "value"]
    for side, row in rows.items():
        one = found[side]
        assert (one.n_elements, one.stored_bytes) == (row["n_elements"], row["stored_bytes"])
        # 5 layers of 3 heads, 384 tokens, 64 elements
        assert row["n_elements"] == 5 * 3 * 384 * 64
        # an element: 4 dense bits; an outlier: a byte (6 index, 1 group, 1 of 5 bits spare). A token of a layer: three
        # groups of 2 x 16 bits and a count of 8 bits for every 64 of its 192 elements
        bits = 4 * 368640 + 8 * row["n_outliers"] + 5 * 384 * (3 * 32 + 3 * 8)
        assert one.stored_bytes == -(-bits // 8)
        assert one.squared_error == pytest.approx(row["squared_error"], rel=1e-8)
        assert one.output_error**2 == pytest.approx(row["squared_output_error"] / row["squared_output"], rel=1e-7)
        both = row["squared_output_error_both"] / row["squared_output"]
        assert one.output_error_both**2 == pytest.approx(both, rel=1e-7)
    assert MEASURED.quantizer(name).realised["key"] == {"outlier_share": Fraction(rows["key"]["n_outliers"], 368640)}


def test_points_show_what_was_measured():
    closed, measured = (result(bits, "oaken:outer=0.05,inner=0.02") for bits in (CLOSED, MEASURED))
    for name in ("measured_bits", "mse", "sqnr_db", "measured_error"):
        assert closed[name] == measured[name] > 0
    assert (closed["bits_kind"], measured["bits_kind"]) == ("closed", "measured")
    assert closed["measured_on"] == "SmolLM2-135M, not your model"
    # nominal: 7 % outliers of a byte, three groups of 32 bits over 512 elements
    assert closed["effective_bits"] == pytest.approx(4 + 8 * 0.07 + 96 / 512)
    shares = [MEASURED.quantizer("oaken:outer=0.05,inner=0.02").realised[s]["outlier_share"] for s in ("key", "value")]
    assert measured["effective_bits"] == pytest.approx(4 + 8 * float(sum(shares)) / 2 + 96 / 512)


def test_what_the_grid_lacks_has_no_error_and_says_how_to_measure():
    found, said = explained(point_of(CLOSED, "oaken:outer=0.055"))
    assert found["measured_error"] is found["mse"] is found["measured_bits"] is None
    assert "`dse measure` a KV dump" in said["measured_error"].equation
    file = measurements.load(Path(data.__file__).parent / measurements.SHIPPED)
    assert file == measurements._shipped()
    # a file of one's own stands alone: errors of other data are not mixed in
    assert not measurements.Bits("closed", file).quantizer("oaken:outer=0.05,inner=0.02").measured


def test_both_shipped_tables_agree():
    """One is of `dse measure` with its thresholds from a file, the other profiles anew; 4/90/6 is the default."""
    table, grid = CLOSED.quantizer("oaken"), CLOSED.quantizer("oaken:groups=4/90/6")
    for side in ("key", "value"):
        for name in ("n_elements", "stored_bytes", "squared_error", "squared_signal", "output_error_both"):
            assert getattr(table.measured[side], name) == pytest.approx(getattr(grid.measured[side], name), rel=1e-8)


def test_every_quantizer_of_the_example_was_measured():
    axes = tomllib.loads((Path(__file__).parents[2] / "notebooks" / "sweep.toml").read_text())["axes"]
    assert (axes["oaken"]["outer"], axes["oaken"]["inner"]) == (
        {"from": 0.01, "to": 0.16, "step": 0.01},
        {"from": 0.01, "to": 0.15, "step": 0.01},
    )
    grid = set(kv_sample_grid.names())
    # 75 splits with an outer group of up to 5 %, 14 + 13 + ... + 4 = 99 with a larger one, and 3 lists; 4 and 5 bits
    assert len(grid) == (75 + 99 + 3) * 2
    for outer, inner, bits in itertools.product(range(1, 17), range(1, 16), (4, 5)):
        if outer + inner <= 20:
            name = f"oaken:outer={outer / 100},inner={inner / 100},outlier_bits={bits}"
            assert quantizers.parse(name).name in grid
    for name in [*grid, *(name for name in axes["quantizer"] if name != "fp16")]:
        assert set(CLOSED.quantizer(name).measured) == {"key", "value"}, name
