"""`dse synthesize`: the sample of release 0.2.0 as a special case, each parameter alone, and one line for bad ones."""

import hashlib
import json
import math
import struct

import numpy as np
import pytest

from cases import each
from dse.core.errors import InputError
from dse.measure import kernels as measure
from dse.measure import synthetic as kv_sample
from dse.measure.dumps import open_dump
from dse.measure.dumps.writer import fp16_header
from dse.measure.recipe import Recipe
from dse.measure.synthetic import layer_of
from factories import assert_one_line

#: of the tensors of the sample that release 0.2.0 shipped, by name
SAMPLE_SHA256 = "c21a3d39c153d0e34e449e9775b64236acbd9a1329fa0aeb5a7cbd8797cd9341"


def test_the_defaults_are_the_sample_of_0_2_0(run, tmp_path):
    assert run("synthesize", "--out", tmp_path / "kv.npz")[0] == 0
    with open_dump(tmp_path / "kv.npz") as dump:
        tensors = [dump.read(name).tobytes() for name in sorted(tensor.name for tensor in dump.tensors)]
    assert hashlib.sha256(b"".join(tensors)).hexdigest() == SAMPLE_SHA256


def test_both_formats_hold_the_same_and_repeat(run, tmp_path):
    words = ["--layers", 2, "--tokens", 40, "--head-dim", 16, "--queries", 4, "--seed", 3]
    found = {}
    for name in ("a.npz", "b.npz", "c.safetensors"):
        code, text, err = run("synthesize", "--out", tmp_path / name, *words)
        assert (code, err) == (0, "")
        assert "synthetic dump" in text
        with open_dump(tmp_path / name) as dump:
            found[name] = {t.name: dump.read(t.name).tobytes() for t in dump.tensors}
            assert dump.metadata["synthetic"] == "true"
            assert "seed 3" in dump.metadata["note"]
            layers = measure.layers(dump)
        assert [layer.query.shape for layer in layers] == [(1, 2, 4, 16)] * 2
    assert found["a.npz"] == found["b.npz"] == found["c.safetensors"]
    a, b = (hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a.npz", "b.npz"))
    assert a == b
    run("synthesize", "--out", tmp_path / "d.npz", *words[:-1], 4)
    assert (tmp_path / "d.npz").read_bytes() != (tmp_path / "a.npz").read_bytes()


def parts(**what):
    sample, query = layer_of(Recipe(**{"n_tokens": 200, "n_layers": 3, **what}), 0)
    return sample.key[0].astype(float), sample.value[0].astype(float), query


def test_ranges_scale_a_layer():
    small, large = parts(key_ranges=(1.0,), value_ranges=(0.5, 1.0, 2.0)), parts(key_ranges=(2.0,), value_ranges=(1.0,))
    assert np.allclose(large[0], 2 * small[0], rtol=2e-3)
    assert np.allclose(large[1], 2 * small[1], rtol=2e-3, atol=1e-6)
    recipe = Recipe(3, 1, 50, 16, 1, value_ranges=(0.5, 1.0, 2.0))
    sizes = [np.abs(layer_of(recipe, layer)[0].value.astype(float)).mean() for layer in range(3)]
    assert sizes[1] / sizes[0] == pytest.approx(2, rel=0.3)
    assert sizes[2] / sizes[1] == pytest.approx(2, rel=0.3)


@pytest.mark.parametrize("n", [0, 1, 5, 12])
def test_outlier_channels_are_as_many_as_asked(n):
    key = parts(n_outlier_channels=n, outlier_offset=20.0, tails=0.0, n_sinks=0)[0]
    assert [int((np.abs(head.mean(axis=0)) > 10).sum()) for head in key] == [n, n]


@pytest.mark.parametrize("n", [0, 1, 3, 9])
def test_sinks_are_as_many_as_asked(n):
    key = parts(n_sinks=n, sink_key=0.01)[0]
    norms = np.sqrt(np.square(key).sum(axis=2))
    low = norms < 0.2 * np.median(norms, axis=1, keepdims=True)
    assert low.sum(axis=1).tolist() == [n, n]
    assert low[:, : min(n, 2)].all()


def test_tails_are_a_bell_without_weight():
    def kurtosis(**what):
        value = parts(n_tokens=2000, n_sinks=0, **what)[1]
        value = value / value.std(axis=1, keepdims=True)
        return float((value**4).mean())

    # four uniform numbers summed: 3 - 1.2 / 4 = 2.7
    assert kurtosis(tails=0.0) == pytest.approx(2.7, abs=0.05)
    assert kurtosis(tails=2.0) > 4
    assert kurtosis(tails=4.0) > kurtosis(tails=2.0)


def test_queries_draw_attention_to_sinks():
    key, _, query = parts(n_queries=64, sink_pull=6.0, n_sinks=2, n_tokens=400)
    for head in range(2):
        scores = query[0, head].astype(float) @ key[head].T / math.sqrt(128)
        assert scores[:, :2].mean() - scores[:, 2:].mean() == pytest.approx(6, abs=0.5)
        centered = scores[:, 2:] - scores[:, 2:].mean(axis=1, keepdims=True)
        assert 0.7 * kv_sample.SPREAD < centered.std() < 2.5 * kv_sample.SPREAD


@each(
    ("words", "text"),
    [
        (["--layers", "0"], "layers = 0: must be a whole number from 1 to"),
        (["--layers", "10001"], "layers = 10001: must be a whole number from 1 to 10,000"),
        (["--tokens", "-5"], "tokens = -5"),
        (["--seed", "-1"], "seed = -1"),
        (["--key-ranges", "1,2"], "key_ranges"),
        (["--key-ranges", "1,,2"], "key-ranges = '1,,2': has an empty entry"),
        (["--value-ranges", "0"], "value_ranges"),
        (["--key-ranges", "nan"], "key-ranges = 'nan'"),
        (["--outlier-channels", "129"], "outlier-channels = 129: must be a whole number from 0 to 128"),
        (["--queries", "321"], "queries = 321: must be a whole number from 0 to 320"),
        (["--tails", "-1"], "tails = -1"),
        (["--key-ranges", "1000", "--outlier-offset", "900"], "layer 0: keys are beyond 65504"),
    ],
)
def test_bad_parameters_are_one_line_and_leave_nothing(run, tmp_path, words, text):
    assert_one_line(run("synthesize", "--out", tmp_path / "kv.npz", *words), 2, text)
    assert not list(tmp_path.iterdir())


def test_bad_files_are_one_line(run, tmp_path):
    assert_one_line(run("synthesize", "--out", tmp_path / "kv.pt"), 2, "must end in .npz or .safetensors")
    (tmp_path / "dir.npz").mkdir()
    assert_one_line(run("synthesize", "--out", tmp_path / "dir.npz"), 4, "is a directory")
    (tmp_path / "file").write_text("x")
    assert_one_line(run("synthesize", "--out", tmp_path / "file" / "kv.npz"), 4, "cannot write")
    huge = ["--layers", "10000", "--heads", "10000", "--tokens", "1000000"]
    assert_one_line(run("synthesize", "--out", tmp_path / "kv.npz", *huge), 5, "make it smaller")
    with pytest.raises(InputError):
        Recipe(n_sinks=-1)


@each(
    ("name", "low", "high"),
    [("outlier_offset", -1000, 1000), ("sink_key", 0, 1000), ("tails", 0, 1000), ("sink_pull", -50, 50)],
)
def test_a_setting_beyond_its_limits_says_them(name, low, high):
    for value, beyond in ((low, low - 0.5), (high, high + 0.5)):
        assert getattr(Recipe(**{name: value}), name) == value
        message = f"^{name.replace('_', '-')} = {beyond}: must be a number from {low:,} to {high:,}$"
        with pytest.raises(InputError, match=message):
            Recipe(**{name: beyond})


@each("length", range(1, 10))
def test_values_of_a_safetensors_file_start_at_a_multiple_of_8_bytes(length):
    """The format asks for no more than a length before the header, but its readers map values where they stand."""
    header = fp16_header({}, [("x" * length, (2, 3)), ("y", (4,))])
    assert len(header) % 8 == 0
    assert struct.unpack("<Q", header[:8])[0] == len(header) - 8
    read = json.loads(header[8:])
    assert read["x" * length] == {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}
    assert read["y"]["data_offsets"] == [12, 20]
