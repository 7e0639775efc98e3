"""Oaken's offline step: order statistics from histograms against sorting, and the file of thresholds."""

import math
import os
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive_oaken as naive
from cases import each
from kernels_ref import inputs
from kernels_ref.oaken import Profiler, Thresholds
from kernels_ref.oaken import profile as profiling

FRACS = [(0.04, 0.9, 0.06), (0.1, 0.9), (0.02, 0.02, 0.9, 0.03, 0.03), (0.5, 0.25, 0.25)]


def thresholds_of(runs, fracs):
    profiler = Profiler(fracs, model="tiny", data="random")
    for run in runs:
        profiler.add(0, "key", run)
        profiler.add(0, "value", -run)
    return profiler.thresholds()


def check(runs, fracs):
    found = thresholds_of(runs, fracs)
    for which, parts in (("key", runs), ("value", [-run for run in runs])):
        lower, upper = naive.profile(parts, fracs)
        wanted = np.array([lower, upper]) + 0.0
        assert np.array(found.of(0, which)).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("fracs", FRACS, ids=str)
def test_profile_twin(fracs):
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (1, 2), (3, 5), (64, 128), (700, 1600)):
        check([(rng.standard_t(2, shape).clip(-6e4, 6e4)).astype(np.float16) for _ in range(3)], fracs)
    check([np.zeros((4, 8), np.float16), -np.zeros((4, 8), np.float16)], fracs)
    check([np.full((4, 8), 65504, np.float16)], fracs)
    check([rng.choice(np.float16([-0.0, 0.0, 1, -1, 2.0**-24]), (40, 8))], fracs)


@given(st.integers(1, 400), st.integers(1, 4), st.sampled_from(FRACS), st.integers(0, 2**32 - 1))
def test_profile_random(n, n_runs, fracs, seed):
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-6, 4, n_runs)
    check([(rng.standard_normal((1, n)) * scale).astype(np.float16) for scale in scales], fracs)


def test_profile_of_all_finite_patterns():
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    x = bits[(bits & 0x7C00) != 0x7C00].view(np.float16)
    check([np.random.default_rng(1).permutation(x).reshape(-1, 496)], FRACS[0])


def test_block_by_block_and_by_heads(monkeypatch):
    x = np.random.default_rng(2).standard_normal((2, 3, 40, 32)).astype(np.float16)
    whole = thresholds_of([x], FRACS[0])
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 2 * 96 * 7)
    assert thresholds_of([x], FRACS[0]) == whole
    assert thresholds_of([x.astype(np.float32)[:, :, ::-1]], FRACS[0]) == whole
    assert thresholds_of([x.reshape(-1, 8)], FRACS[0]) == whole


def test_large_blocks_count_in_parts():
    x = np.random.default_rng(3).integers(0, 31744, 2**20 + 77).astype(np.uint16)
    found = np.zeros(2**16, np.int64)
    profiling.histogram(x, profiling.PARTS, found)
    assert np.array_equal(found, np.bincount(x, minlength=2**16))


def test_ranks():
    """FP32 products up to torch's limit, exact ones beyond; the last group's share may exceed 1 by rounding."""
    n = 2**24
    share = np.float32(0.47)
    assert profiling._ranks(n, (0.94, 0.06))[0][0] == math.floor(share * np.float32(n - 1))
    assert profiling._ranks(n + 1, (0.94, 0.06))[0][0] == math.floor(float(share) * n)
    low, high = profiling._ranks(2**30, (0.04, 0.96))[0]
    assert low == math.floor(float(np.float32(0.02)) * (2**30 - 1))
    assert high == math.ceil(float(np.float32(0.98)) * (2**30 - 1))
    for count in (1, 2, 3, 2**24 - 1, 2**40):
        for low, high in profiling._ranks(count, FRACS[2]):
            assert 0 <= low < count
            assert 0 <= high < count


def test_what_profiling_refuses():
    profiler = Profiler()
    x = np.ones((2, 4), np.float16)
    for arguments, words in (
        ((-1, "key", x), "layer = -1"),
        ((True, "key", x), "layer = True"),
        ((0, "query", x), "which = 'query'"),
        ((0, "key", x[:0]), "must not be empty"),
        ((0, "key", x * np.float16(np.inf)), "8 of 8 values"),
    ):
        with pytest.raises(ValueError, match=words):
            profiler.add(*arguments)
    with pytest.raises(TypeError, match="numpy"):
        profiler.add(0, "key", [[1.0]])
    assert profiler.n_elements == 0
    with pytest.raises(ValueError, match="layer 0: has no keys"):
        profiler.thresholds()
    profiler.add(1, "key", x)
    with pytest.raises(ValueError, match="layer 0: has no keys"):
        profiler.thresholds()
    for fracs in ((1.0,), (0.5, 0.6), (0.5, math.nan), "0.5", (0.2,) * 5 + (0.0,), (True, False)):
        with pytest.raises(ValueError, match="fracs = "):
            Profiler(fracs)


# the file -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def thresholds():
    rng = np.random.default_rng(4)
    profiler = Profiler(model='a "model" \\ of ö', data="random, 3 runs")
    for _ in range(3):
        for layer in range(2):
            for which in ("key", "value"):
                profiler.add(layer, which, rng.standard_normal((16, 32)).astype(np.float16))
    return profiler.thresholds()


def test_file_round_trip(thresholds, tmp_path):
    path = tmp_path / "t.toml"
    thresholds.save(path)
    thresholds.save(path)  # over itself
    assert Thresholds.load(path) == thresholds
    assert Thresholds.load(str(path)) == thresholds
    assert os.listdir(tmp_path) == ["t.toml"]
    assert thresholds.n_runs == 3
    assert thresholds.n_elements == 3 * 4 * 16 * 32
    assert np.array(thresholds.key_lower).shape == (2, 3)


@given(st.lists(st.floats(-65504, 65504), min_size=4, max_size=4))
def test_file_keeps_every_bit(values):
    values = sorted(values)
    row, upper = ((*values[:2], 0.0),), ((values[3], values[2], 0.0),)
    one = Thresholds(FRACS[0], row, upper, row, upper)
    assert f"{values[0]!r}" in one.to_toml()
    assert tomllib.loads(one.to_toml())["layer"][0]["key_lower"] == list(row[0])


def test_nothing_is_left_of_a_failed_save(thresholds, tmp_path, monkeypatch):
    path = tmp_path / "t.toml"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        thresholds.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["t.toml"]


@each(
    ("old", "new", "words"),
    [
        ('format = "oaken-thresholds-1"', "", "format = None"),
        ("oaken-thresholds-1", "oaken-thresholds-9", "must be 'oaken-thresholds-1'"),
        ("n_runs = 3", "", "n_runs: is missing"),
        ("n_runs = 3", "n_runs = -3", "n_runs = -3"),
        ("n_runs = 3", "n_runs = true", "n_runs = True"),
        ("n_runs = 3", "n_runs = 3\nn_runs = 3", "overwrite"),
        ("n_runs = 3", "n_runs = 3\ntemperature = 1", "'temperature': is not a field"),
        ("fracs = [0.04", "fracs = [0.14", "fracs = "),
        ("fracs = [0.04, 0.9, 0.06]", "fracs = [0.1, 0.9]", "must be 2 numbers"),
        ("fracs = [0.04, 0.9, 0.06]", 'fracs = "0.1"', "fracs = '0.1'"),
        ("number = 1", "number = 2", "layer 1: number = 2"),
        ("[[layer]]", "[[layers]]", "layer: is missing"),
        ("key_upper", "key_uper", "key_upper: is missing"),
        ("value_upper = [", "value_upper = [nan, ", "must be 3 numbers"),
        ("value_lower = [-", "value_lower = [nan, 0.0, 0.0] # ", "within"),
        ("value_lower = [-", "value_lower = [inf, 0.0, 0.0] # ", "within"),
        ("value_lower = [-", "value_lower = [60000.0, 60001.0, 0.0] # ", "nested"),
        ("value_lower = [-", 'value_lower = ["a", 0.0, 0.0] # ', "must be 3 numbers"),
        ('data = "', 'data = "\\u0007', "printable"),
        ('data = "', 'data = "' + "x" * 400, "printable"),
        ('data = "', "data = [" + "1," * 600 + ']\nx = "', "characters"),
        ("fracs = [", "fracs = [[", "must be TOML"),
        ("n_runs", "[" * 100 + "\nn_runs", "must be"),
        ('model = "', 'model = "\x00', "must be TOML"),
    ],
)
def test_bad_files(thresholds, tmp_path, old, new, words):
    path = tmp_path / "bad\n.toml"
    text = thresholds.to_toml()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=words) as caught:
        Thresholds.load(path)
    message = str(caught.value)
    assert "bad\\n.toml: " in message
    assert message.isprintable()
    assert len(message) < 500 + len(str(path))


def test_files_that_are_none(tmp_path):
    for content, words in ((b"\xff\xfe", "UTF-8"), (b"", "format"), (b"#" * 2**21, "bytes"), (b"x = 1\n" * 9, "TOML")):
        path = tmp_path / "f.toml"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            Thresholds.load(path)
    nested = tmp_path / "nested.toml"
    nested.write_text("x = " + "[\n" * 50_000)
    with pytest.raises(ValueError, match="must be"):
        Thresholds.load(nested)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="regular file"):
        Thresholds.load(tmp_path / "fifo")
    with pytest.raises(OSError, match="missing"):
        Thresholds.load(tmp_path / "missing.toml")
    with pytest.raises(OSError):  # noqa: PT011
        Thresholds.load(tmp_path)


@pytest.mark.parametrize("which", ["key", "value"])
def test_thresholds_of_one_layer(thresholds, which):
    lower, upper = thresholds.of(1, which)
    assert len(lower) == len(upper) == 3
    for layer in (-1, 2, True, 1.0):
        with pytest.raises(ValueError, match="layer = "):
            thresholds.of(layer, which)
    with pytest.raises(ValueError, match="which = 'query'"):
        thresholds.of(0, "query")
