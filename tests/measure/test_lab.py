"""A dump in memory and one quantizer on it: numbers against plain loops, bad dumps in one line, maps drawn."""

import io
import math

import numpy as np
import pytest

import kernels_ref
from dse import quantizers
from dse.core.errors import InputError, LimitError
from dse.figures.charts import lab
from dse.figures.drawing import to_plotly
from dse.measure import lab as measure_view
from dse.measure import synthetic as kv_sample
from dse.measure.lab import ReadOptions

HOW = ReadOptions()


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Two layers of three heads, 40 tokens, 16 channels."""
    path = tmp_path_factory.mktemp("dump") / "kv.npz"
    np.savez(path, **kv_sample.arrays(kv_sample.synthetic(2, 3, 40, 16, 5)))
    return measure_view.hold(path)


def test_errors_are_those_of_plain_loops(dump):
    spec = quantizers.parse("nqkv:block=64")
    found = measure_view.measured(dump, spec, HOW)
    rows = found.errors.set_index(["side", "layer", "head"])
    method = kernels_ref.NF4(64)
    total_signal = total_error = 0.0
    for layer in (0, 1):
        x = dump.tensors[layer]["value"]
        y = method.quantize(x).dequantize()
        for head in range(3):
            signal = error = largest = 0.0
            for a, b in zip(x[0, head].reshape(-1).tolist(), y[0, head].reshape(-1).tolist(), strict=True):
                signal, error, largest = signal + a * a, error + (a - b) ** 2, max(largest, abs(a - b))
            row = rows.loc["value", layer, head]
            assert row["sqnr_db"] == pytest.approx(10 * math.log10(signal / error), rel=1e-12)
            assert row["mse"] == pytest.approx(error / (40 * 16), rel=1e-12)
            assert row["max_abs_error"] == largest
            total_signal, total_error = total_signal + signal, total_error + error
    whole = found.errors[found.errors["layer"].isna() & (found.errors["side"] == "value")].iloc[0]
    assert whole["sqnr_db"] == pytest.approx(10 * math.log10(total_signal / total_error), rel=1e-12)
    # 4-bit codes, and a 16-bit scale for the 3 * 16 = 48 of a token, less than a block: 4 + 16 / 48
    assert found.ledger["quantizer"].to_list() == ["keys", "values", "keys and values"]
    assert set(found.ledger["stored_bits"]) == {4 + 16 / 48}
    assert set(found.ledger["payload_bits"]) == {4.0}
    assert set(found.ledger["scales_bits"]) == {16 / 48}
    assert found.nominal_bits == 4 + 16 / 48
    assert found.errors["output_error"].between(0, 1).all()


def test_a_view_is_one_head_before_and_after(dump):
    spec = quantizers.parse("nqkv:block=64")
    found = measure_view.view(dump, spec, HOW, 1, "key", 2, 8, 16)
    x = dump.tensors[1]["key"]
    y = kernels_ref.NF4(64).quantize(x).dequantize()
    assert np.array_equal(found.before, x[0, 2, 8:24])
    assert np.array_equal(found.after, y[0, 2, 8:24])
    assert (found.first_token, found.n_tokens) == (8, 40)
    ((_, low, high),) = found.marks
    assert (low, high) == (y[0, 2].min(), y[0, 2].max())
    assert found.histogram[["n_before", "n_after"]].sum().to_list() == [640, 640]
    table = measure_view.histogram(np.array([0.0, 0.1, 1.0]), np.array([0.5, 0.5, 2.0]), 4)
    # bins of 0.5 from 0 to 2; the last holds its upper end
    assert table["n_before"].to_list() == [2, 0, 1, 0]
    assert table["n_after"].to_list() == [0, 2, 0, 1]


def test_oaken_takes_the_shipped_thresholds_and_profiles_others(dump):
    sample = measure_view.sample()
    spec = quantizers.parse("oaken")
    found = measure_view.view(sample, spec, HOW, 1, "key", 0, 0, 4)
    lower, upper = sample.thresholds.of(1, "key")
    assert [mark[1:] for mark in found.marks] == [(lower[0], upper[0]), (lower[1], upper[1])]
    assert found.marks[0][0] == "4 % beyond, 90 % next within"
    assert "another sample" in measure_view.thresholds_of(sample, spec, HOW)[1]
    own, note = measure_view.thresholds_of(dump, spec, HOW)
    assert own.fracs == (0.04, 0.9, 0.06)
    assert "these very values" in note
    assert measure_view.thresholds_of(sample, quantizers.parse("oaken:outer=0.02"), HOW)[0].fracs[0] == 0.02


def test_heads_of_flat_tensors_are_told(tmp_path):
    x = kv_sample.synthetic(1, 2, 6, 8, 5)[0]
    flat = {side: getattr(x, side)[0].transpose(1, 0, 2).reshape(6, 16) for side in ("key", "value")}
    np.savez(tmp_path / "flat.npz", **{f"layer0.{side}": part for side, part in flat.items()})
    held = measure_view.hold(tmp_path / "flat.npz")
    spec = quantizers.parse("fp8")
    assert set(measure_view.measured(held, spec, HOW, 0).errors["head"].dropna()) == {0}
    assert set(measure_view.measured(held, spec, ReadOptions(2), 0).errors["head"].dropna()) == {0, 1}
    assert np.array_equal(measure_view.view(held, spec, ReadOptions(2), 0, "value", 1, 0, 6).before, x.value[0, 1])
    with pytest.raises(InputError, match="3 heads do not divide the channels"):
        measure_view.measured(held, spec, ReadOptions(3))


def saved(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


GOOD = np.ones((1, 1, 4, 8), np.float16)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "bad.npz"),
        (b"no zip at all", "bad.npz"),
        (saved(layer0_key=np.ones(3)), "layer0_key"),
        (saved(weight=GOOD), "does not say which layer and side"),
        (saved(k_0=GOOD, v_0=GOOD[..., :4]), "must have the same shape"),
        (saved(q_0=GOOD), "holds no keys and no values"),
    ],
)
def test_bad_dumps_are_said_in_a_line_without_their_path(tmp_path, content, wrong):
    path = tmp_path / "dump.npz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        measure_view.hold(path, "bad.npz")
    (line,) = caught.value.lines()
    assert wrong in line
    assert str(tmp_path) not in line


def test_limits_and_places(dump, tmp_path):
    path = tmp_path / "kv.npz"
    path.write_bytes(saved(k_0=GOOD))
    with pytest.raises(LimitError, match=r"kv\.npz"):
        measure_view.hold(path, "kv.npz", max_bytes=10)
    spec = quantizers.parse("nqkv")
    for place, wrong in (
        ((7, "key", 0, 0), "layer = 7: must be one of 0, 1"),
        ((0, "key", 3, 0), "head = 3: must be 0 to 2"),
        ((0, "key", 0, 40), "first token = 40: must be 0 to 39"),
    ):
        with pytest.raises(InputError, match=wrong):
            measure_view.view(dump, spec, HOW, *place, 8)
    keys_only = measure_view.hold(path)
    assert measure_view.measured(keys_only, spec, HOW).ledger["quantizer"].to_list() == ["keys"]
    with pytest.raises(InputError, match="has only keys"):
        measure_view.view(keys_only, spec, HOW, 0, "value", 0, 0, 8)
    nothing = np.full((1, 1, 4, 8), np.nan, np.float16)
    path.write_bytes(saved(k_0=nothing, v_0=nothing))
    unclean = measure_view.hold(path)
    with pytest.raises(InputError, match="nonfinite"):
        measure_view.measured(unclean, spec, HOW)
    for name in ("nqkv", "oaken"):
        done = measure_view.measured(unclean, quantizers.parse(name), ReadOptions(nonfinite="replace"))
        assert done.errors["max_abs_error"].max() == 0


def test_maps_show_every_cell_in_both_libraries(dump, sketch):
    part = np.array([[1.0, -2.0, np.nan], [4.0, 5.0, 6.5]])
    chart = lab.values(part, 10, "value", lab.scale("value", "", part), "A map")
    (trace,) = to_plotly.spec(chart)["data"]
    assert trace["x"] == [10.0, 11.0]
    assert trace["z"] == [[1.0, 4.0], [-2.0, 5.0], [None, 6.5]]  # a row a channel
    assert chart.colors.axis.low == -2.0
    assert chart.colors.axis.high == 6.5
    assert sketch(chart).startswith(b"\x89PNG")
    errors = measure_view.measured(dump, quantizers.parse("nqkv"), HOW).errors
    own = errors[errors["side"] == "key"]
    chart = lab.heads(own, "mse", "mean squared error", "", "Errors")
    cells = [v for row in to_plotly.spec(chart)["data"][0]["z"] for v in row]
    assert cells == own.dropna(subset=["layer"])["mse"].to_list()
    assert "layer 1, head 2" in chart.panels[0].series[0].hover[5]
