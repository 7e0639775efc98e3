"""`dse quantize` and `dse thresholds` on files: what they print and write, and one line for every bad input."""

import json

import numpy as np
import pytest

import kernels_ref
from cases import each
from dse.measure import kernels
from dse.measure import synthetic as kv_sample
from dse.quantizers import FAMILIES
from dse.specs import measurements
from factories import assert_one_line


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "kv.npz"
    np.savez(path, **kv_sample.arrays(kv_sample.synthetic(3, 2, 60, 16, 1)))
    return path


@pytest.fixture
def thresholds(run, sample, tmp_path):
    out = tmp_path / "thresholds.toml"
    code, text, _ = run("thresholds", sample, "--out", out, "--model", "toy")
    assert code == 0
    assert "3 layers, 1 runs" in text
    return out


def test_thresholds_are_those_of_the_profiler(thresholds, sample):
    found = kernels_ref.Thresholds.load(thresholds)
    profiler = kernels_ref.Profiler((0.04, 0.9, 0.06))
    with np.load(sample) as dump:
        for name in dump.files:
            profiler.add(int(name[5]), name.split(".")[1], dump[name])
    assert found.key_lower == profiler.thresholds().key_lower
    assert found.value_upper == profiler.thresholds().value_upper
    assert (found.model, found.data) == ("toy", "kv.npz")


def test_quantize_prints_what_it_writes(run, sample, thresholds, tmp_path):
    out = tmp_path / "out"
    methods = ["oaken", "nqkv:block=64", "sinkq:group=16,residual=8"]
    options = [word for method in methods for word in ("--quantizer", method)]
    code, text, err = run("quantize", sample, *options, "--thresholds", thresholds, "--out", out)
    assert (code, err) == (0, "")
    found = measurements.load(out / "measurement.json")
    assert [m.quantizer for m in found.methods] == methods
    assert found.data.synthetic is False
    for method in found.methods:
        assert method.quantizer in text
        for tensor in method.tensors:
            name = "".join(c if c.isalnum() or c in "=.," else "-" for c in method.quantizer)
            with np.load(out / "packed" / name / f"layer{tensor.layer}.{tensor.which}.npz") as buffers:
                assert sum(buffers[b].nbytes for b in buffers.files) == tensor.stored_bytes
    # NQKV by hand: 32 channels, one block of 64 a token: 4 bits and an FP16 absmax
    nqkv = found.methods[1].tensors[0]
    assert nqkv.stored_bytes == 60 * (32 // 2 + 2)
    again = run("quantize", sample, *options, "--thresholds", thresholds, "--json")
    assert json.loads(again[1]) == json.loads((out / "measurement.json").read_text())


def test_a_measurement_changes_the_design_point(run, sample, thresholds, tmp_path):
    run("quantize", sample, "--quantizer", "oaken", "--thresholds", thresholds, "--out", tmp_path)
    words = ["point", "--device", "oaken-hbm", "--model", "llama2-7b", "--quantizer", "oaken", "--json"]
    file = tmp_path / "measurement.json"
    _, text, _ = run(*words, "--bits", "measured", "--measurements", file)
    result = json.loads(text)
    found = measurements.load(file).methods[0].tensors
    share = sum(t.counts["n_outliers"] for t in found) / sum(t.n_elements for t in found)
    assert result["effective_bits"] == pytest.approx(4 + 8 * share + 96 / 4096)
    assert (result["bits_kind"], result["measured_on"]) == ("measured", "kv.npz")


def test_two_dimensional_tensors_need_their_heads(run, tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    path = tmp_path / "kv.npz"
    np.savez(path, k_0=x, v_0=x)
    one, two = (
        json.loads(run("quantize", path, "--quantizer", "qserve", "--heads", heads, "--json")[1]) for heads in (1, 2)
    )
    # QServe by hand: scale and zero of 16 bits each per head and token
    assert one["methods"][0]["tensors"][0]["stored_bytes"] == 40 * (32 + 4)
    assert two["methods"][0]["tensors"][0]["stored_bytes"] == 40 * (32 + 8)


def bad(tmp_path, name="layer0.key", value=None, **changes):
    path = tmp_path / "bad.npz"
    x = np.zeros((8, 16), np.float16)
    for at, what in changes.items():
        x[int(at[1:]), 3] = what
    np.savez(path, **{name: x if value is None else value, "layer0.value": np.zeros((8, 16), np.float16)})
    return path


def test_values_that_are_not_finite_are_counted_or_replaced(run, tmp_path):
    path = bad(tmp_path, r2=np.nan, r5=np.inf)
    assert_one_line(run("quantize", path, "--quantizer", "nqkv"), 2, "2 of 128 values", "[2, 3]", "nonfinite")
    assert run("quantize", path, "--quantizer", "nqkv", "--nonfinite", "replace")[0] == 0


@each(
    ("words", "parts"),
    [
        (["--quantizer", "oaken"], ["oaken", "--thresholds", "dse thresholds"]),
        (["--quantizer", "fp16"], ["fp16", "no kernel"]),
        (["--quantizer", "nqvk"], ["nqvk", "did you mean nqkv"]),
        (["--quantizer", "qserve", "--heads", "3"], ["n_heads = 3", "16 channels"]),
        (["--quantizer", "qserve", "--heads", "0"], ["heads = 0", "1 to"]),
        (["--quantizer", "nqkv", "--nonfinite", "mask"], ["nonfinite = 'mask'", "raise or replace"]),
        (["--quantizer", "nqkv", "--max-bytes", "100"], ["bad.npz"]),
        (["--quantizer", "nqkv", "--max-bytes", "0"], ["max-bytes = 0"]),
        (["--quantizer", "oaken", "--thresholds", "nowhere.toml"], ["nowhere.toml"]),
        (["--quantizer", "sinkq:group=8"], ["group = 8", "multiple of 16"]),
    ],
)
def test_bad_requests_are_one_line(run, tmp_path, words, parts):
    path = bad(tmp_path)
    code, out, err = run("quantize", path, *words, "--out", tmp_path / "out")
    assert_one_line((code, out, err), 5 if "100" in words else 2, *parts)
    assert not (tmp_path / "out" / "measurement.json").exists()


def test_bad_files_are_one_line(run, tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 not a zip")
    assert_one_line(run("quantize", tmp_path / "none.npz", "--quantizer", "nqkv"), 2, "none.npz")
    assert_one_line(run("quantize", tmp_path / "a.txt", "--quantizer", "nqkv"), 2, "a.txt", ".npz")
    assert_one_line(run("quantize", tmp_path / "b.npz", "--quantizer", "nqkv"), 2, "b.npz")
    assert_one_line(run("quantize", tmp_path, "--quantizer", "nqkv"), 2, "directory")
    path = bad(tmp_path, name="weights")
    assert_one_line(run("quantize", path, "--quantizer", "nqkv"), 2, "'weights'", "layer0.key")
    assert_one_line(run("thresholds", path, "--out", tmp_path / "t.toml"), 2, "'weights'")
    good = bad(tmp_path)
    assert_one_line(run("thresholds", good, "--out", tmp_path / "no" / "t.toml"), 4, "cannot write")
    assert_one_line(run("thresholds", good, "--out", tmp_path / "t.toml", "--shares", "5/90"), 2, "sum to 100")
    assert not (tmp_path / "t.toml").exists()


def test_thresholds_of_other_shares_are_refused_before_anything_is_written(run, sample, thresholds, tmp_path):
    out = tmp_path / "out"
    words = [
        "quantize",
        sample,
        "--quantizer",
        "nqkv",
        "--quantizer",
        "oaken:groups=2/2/90/6",
        "--thresholds",
        thresholds,
    ]
    assert_one_line(run(*words, "--out", out), 2, "4/90/6 %, must be for 2/2/90/6", "--shares 2/2/90/6")
    assert not out.exists()


def test_bits_that_were_not_measured_are_refused(run):
    words = ["point", "--device", "a100-80gb", "--model", "llama2-7b", "--bits", "measured"]
    assert_one_line(run(*words, "--quantizer", "sinkq:bits=4"), 2, "has no measurement of sinkq:bits=4", "dse quantize")
    assert run(*words, "--quantizer", "fp16")[0] == 0


def test_errors_are_those_of_packed_elements(run, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 1, 200, 32)).astype(np.float16)
    np.savez(tmp_path / "kv.npz", **{"layer0.key": x, "layer0.value": x})
    _, text, _ = run("quantize", tmp_path / "kv.npz", "--quantizer", "kivi", "--json")
    key, value = json.loads(text)["methods"][0]["tensors"]
    # KIVI: keys packed 128 at a time, all values but the last 128
    assert key["counts"]["n_packed_elements"] == 128 * 32
    assert value["counts"]["n_packed_elements"] == 72 * 32
    kivi = kernels_ref.KIVI()
    back = kivi.quantize(x, "key").dequantize()
    error = np.square(x[:, :, :128].astype(np.float64) - back[:, :, :128]).mean()
    _, shown, _ = run("quantize", tmp_path / "kv.npz", "--quantizer", "kivi")
    assert f"{error:.4g}" in shown
    np.savez(tmp_path / "short.npz", **{"layer0.key": x[:, :, :20], "layer0.value": x[:, :, :20]})
    run("quantize", tmp_path / "short.npz", "--quantizer", "kivi", "--out", tmp_path / "m")
    words = ["point", "--device", "a100-80gb", "--model", "llama2-7b", "--quantizer", "kivi"]
    _, text, _ = run(*words, "--measurements", tmp_path / "m" / "measurement.json", "--all")
    assert "nothing was packed" in text
    assert "the data has 1 head of 32, the model 32 heads of 128" in text


def test_damaged_measurements_are_refused(run, sample, tmp_path):
    run("quantize", sample, "--quantizer", "kivi:group=16,residual=16", "--out", tmp_path)
    path = tmp_path / "measurement.json"
    good = json.loads(path.read_text())
    words = ["point", "--device", "a100-80gb", "--model", "llama2-7b", "--measurements", path]
    for change, part in (
        (lambda d: d["methods"][0]["tensors"][0]["counts"].update(outliers=1), "'outliers' = 1: must be one of"),
        (lambda d: d["methods"][0]["tensors"][0]["counts"].update(n_packed_elements=10**12), "at most n_elements"),
        (lambda d: d["methods"].append(d["methods"][0]), "is measured twice"),
        (lambda d: d["methods"][0].update(quantizer="intt8"), "measurement.json: unknown quantizer 'intt8'"),
    ):
        document = json.loads(json.dumps(good))
        change(document)
        path.write_text(json.dumps(document))
        assert_one_line(run(*words), 2, part)


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ("0/100/0", "0 percent: each must be above 0"),
        ("4/90/7", "must sum to 100, not 101"),
        ("100", "must be 2 to 5 percentages"),
        ("4/nan/6", "must be 2 to 5 percentages"),
        ("", "must be 2 to 5"),
    ],
)
def test_shares_that_part_nothing_are_refused(run, sample, tmp_path, shares, says):
    out = tmp_path / "t.toml"
    assert_one_line(run("thresholds", sample, "--out", out, "--shares", shares), 2, f"shares = {shares!r}: {says}")
    assert not out.exists()


def test_a_layer_that_cannot_be_quantized_leaves_nothing_behind(run, sample, tmp_path):
    def tensor(*shape):
        return np.random.default_rng(1).standard_normal(shape).astype(np.float16)

    path, out = tmp_path / "shapes.npz", tmp_path / "new" / "out"
    np.savez(
        path,
        **{
            "layer0.key": tensor(160, 64),
            "layer0.value": tensor(160, 64),
            "layer1.key": tensor(160, 64),
            "layer1.value": tensor(80, 64),
        },
    )
    says = "layer 1: value has shape (80, 64): must be that of key, (160, 64)"
    assert_one_line(run("quantize", path, "--quantizer", "sinkq", "--out", out), 2, says)
    assert not out.parent.exists()
    # what an earlier run wrote into the same directory stays as it was
    assert run("quantize", sample, "--quantizer", "sinkq", "--out", out)[0] == 0
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert run("quantize", path, "--quantizer", "sinkq", "--out", out)[0] == 2
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((8,), "must be [batch, heads, tokens, head_dim] or [tokens, channels]"),
        ((1, 2, 16), "must be [batch, heads, tokens, head_dim] or [tokens, channels]"),
        ((0, 32), "holds no elements"),
        ((1, 2, 0, 32), "holds no elements"),
    ],
)
def test_other_shapes_and_empty_dumps_are_one_line_for_every_method(run, tmp_path, shape, says):
    path, others = tmp_path / "kv.npz", []
    np.savez(path, **{"layer0.key": np.zeros(shape, np.float16), "layer0.value": np.zeros(shape, np.float16)})
    methods = [name for name in kernels.measurable() if name != "oaken" and not FAMILIES[name].latent]
    for words in (
        *(("quantize", path, "--quantizer", name) for name in methods),
        ("thresholds", path, "--out", tmp_path / "t.toml"),
    ):
        code, out, err = run(*words)
        if (code, out, err.count("\n")) != (2, "", 1) or (says not in err and words[0] != "thresholds"):
            others.append((*words, code, err))
    assert not others
