"""`dse measure` on files: what it writes, that it goes on where it stopped, and one line for every bad dump."""

import json
import struct
import zipfile

import numpy as np
import pandas as pd
import pytest

import dse
from cases import each
from dse import quantizers
from dse.core import files
from dse.core.errors import InputError, OutputError
from dse.figures.export import image
from dse.measure import errors as measure_errors
from dse.measure import kernels as measure
from dse.measure import run as measure_run
from dse.measure import synthetic as kv_sample
from dse.measure.dumps import open_dump
from dse.measure.options import MeasureOptions
from dse.specs import measurements
from dse.sweep import store as sweep_store
from factories import assert_one_line

METHODS = "nqkv:block=64,kivi:group=16,residual=16"
RESULTS = ("measured.parquet", "measurement.json", "summary.json", "measure.html")


def meta(**what):
    return np.frombuffer(json.dumps(what).encode(), np.uint8)


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "kv.npz"
    np.savez(path, **kv_sample.arrays(kv_sample.synthetic(2, 2, 80, 16, 1)), meta=meta(model="toy", synthetic="true"))
    return path


def arrays(n_layers=2, n_tokens=80, **changes):
    found = kv_sample.arrays(kv_sample.synthetic(n_layers, 2, n_tokens, 16, 1))
    for name, x in changes.items():
        name = name.replace("_", ".", 1)
        if x is None:
            del found[name]
        else:
            found[name] = x
    return found


def measured(run, path, out, *words, methods=METHODS, draws=False):
    """`dse measure`; its pictures, which take most of its time, are drawn where a test looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        if not draws:
            blank = dict.fromkeys(image.SIZED, b"not drawn")
            patch.setattr(image, "images", lambda *_: blank)
        return run("measure", path, "--quantizers", methods, "--out", out, *words)


def test_table_summary_measurement_and_page(run, sample, tmp_path):
    out = tmp_path / "out"
    code, text, err = measured(run, sample, out, draws=True)
    assert (code, err) == (0, "")
    assert "kv.npz (toy, keys after RoPE)  (synthetic)" in text
    table = pd.read_parquet(out / "measured.parquet")
    # 2 methods x 2 layers x (2 heads + all) x (key, value, both) x contexts 64 and 80
    assert len(table) == 2 * 2 * 3 * 3 * 2
    assert set(table["context_tokens"]) == {64, 80}
    assert table["synthetic"].all()
    assert set(table["queries"]) == {"drawn"}
    whole = table[table["head"].isna()]
    parts = [name for name in table if name.endswith("_bits") and name != "stored_bits"]
    assert np.allclose(whole[parts].sum(axis=1), whole["stored_bits"], rtol=1e-12)
    assert table[table["head"].notna()]["stored_bits"].isna().all()
    # NQKV by hand: 32 channels, one block of 64 a token: 4 bits and an FP16 absmax over 32 elements
    assert set(whole[whole["method"] == "nqkv:block=64"]["stored_bits"]) == {4.5}
    # the closed form at every length
    spec = quantizers.parse("kivi:group=16,residual=16")
    kivi = whole[(whole["method"] == spec.name) & (whole["side"] != "both")]
    for row in kivi.itertuples():
        ledger = spec.layout(quantizers.TensorShape(row.side, 2, 16, shallow=True)).ledger(row.context_tokens)
        assert row.stored_bits == float(sum(ledger.values()) / (row.context_tokens * 32))
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads(measured(run, sample, out, "--json", draws=True)[1]) == summary
    assert [row["side"] for row in summary["rows"][:3]] == ["key", "value", "both"]
    page = (out / "measure.html").read_text()
    assert "synthetic" in page
    for stem in ("error_bits", "error_context", "error_layer"):
        assert (out / f"{stem}.svg").stat().st_size > 1000
        assert f'id="{stem}"' in page


def test_errors_and_bits_are_those_of_dse_quantize(run, sample, tmp_path):
    measured(run, sample, tmp_path / "out")
    run(
        "quantize",
        sample,
        "--quantizer",
        METHODS.split(",", 1)[0],
        "--quantizer",
        METHODS.split(",", 1)[1],
        "--out",
        tmp_path / "other",
    )
    mine, other = (measurements.load(tmp_path / name / "measurement.json") for name in ("out", "other"))
    assert mine.data.synthetic
    assert other.data.synthetic  # the dump says so itself
    for a, b in zip(mine.methods, other.methods, strict=True):
        assert [t.model_copy(update={"output": None}) for t in a.tensors] == b.tensors
        assert all(t.output and t.output.squared > 0 for t in a.tensors)
    table = pd.read_parquet(tmp_path / "out" / "measured.parquet")
    for method in mine.methods:
        for tensor in method.tensors:
            own = table[
                (table["method"] == method.quantizer)
                & (table["layer"] == tensor.layer)
                & (table["side"] == tensor.which)
                & (table["context_tokens"] == 80)
            ]
            row = own[own["head"].isna()].iloc[0]
            assert row["squared_error"] == pytest.approx(tensor.squared_error, rel=1e-12)
            assert row["max_abs_error"] == tensor.max_abs_error
            assert row["stored_bits"] == 8 * tensor.stored_bytes / tensor.n_elements


def test_a_shorter_context_is_the_dump_cut_short(run, sample, tmp_path):
    cut = {name: x[:, :, :48] for name, x in arrays().items()}
    np.savez(tmp_path / "cut.npz", **cut)
    measured(run, sample, tmp_path / "a", "--contexts", "48")
    measured(run, tmp_path / "cut.npz", tmp_path / "b", "--contexts", "48")
    a, b = (pd.read_parquet(tmp_path / name / "measured.parquet") for name in "ab")
    a = a[a["context_tokens"] == 48].reset_index(drop=True)
    pd.testing.assert_frame_equal(a.drop(columns=["data", "synthetic"]), b.drop(columns=["data", "synthetic"]))


def test_dumped_queries_are_used_where_they_stand(run, tmp_path):
    rng = np.random.default_rng(1)
    query = rng.standard_normal((1, 4, 8, 16)).astype(np.float16)
    np.savez(tmp_path / "kv.npz", **arrays(), **{f"layer{i}.query": query for i in range(2)})
    assert measured(run, tmp_path / "kv.npz", tmp_path / "out", "--contexts", "76,72")[0] == 0
    table = pd.read_parquet(tmp_path / "out" / "measured.parquet").query("side == 'both'")
    by = table[table["head"] == 0].set_index("context_tokens")
    # the 8 queries are those of the tokens 72..79: of a context of 76, 4 stand inside; of 72, none
    assert set(by.loc[80, "n_queries"]) == {2 * 8}
    assert set(by.loc[76, "n_queries"]) == {2 * 4}
    assert set(by.loc[76, "queries"]) == {"dumped"}
    assert set(by.loc[72, "queries"]) == {"drawn"}


def test_the_measurement_joins_the_design_point(run, sample, tmp_path):
    measured(run, sample, tmp_path / "out", methods="nqkv,fp8")
    file = tmp_path / "out" / "measurement.json"
    words = ["point", "--device", "a100-80gb", "--model", "llama2-7b", "--measurements", file, "--json"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    wanted = {(r["method"], r["side"]): r["output_error"] for r in summary["rows"] if r["context_tokens"] == 80}
    same = json.loads(run(*words, "--quantizer", "nqkv")[1])
    assert same["measured_error"] == pytest.approx(wanted["nqkv", "both"], rel=1e-9)
    mixed = json.loads(run(*words, "--key-quantizer", "nqkv", "--value-quantizer", "fp8")[1])
    root = (wanted["nqkv", "key"] ** 2 + wanted["fp8", "value"] ** 2) ** 0.5
    assert mixed["measured_error"] == pytest.approx(root, rel=1e-9)
    assert json.loads(run(*words, "--quantizer", "int8")[1])["measured_error"] is None
    assert json.loads(run(*words, "--key-quantizer", "int8", "--value-quantizer", "fp8")[1])["measured_error"] is None
    # 16 bits keep what the model computes
    assert json.loads(run(*words)[1])["measured_error"] == 0
    keys = json.loads(run(*words, "--key-quantizer", "nqkv")[1])
    assert keys["measured_error"] == pytest.approx(wanted["nqkv", "key"], rel=1e-9)
    text = run(*words[:-1], "--quantizer", "nqkv")[1]
    assert f"error of the attention output           {wanted['nqkv', 'both']:.4g}" in text


def test_sweeps_and_fronts_have_the_error(run, sample, tmp_path):
    measured(run, sample, tmp_path / "out", methods="nqkv,fp8")
    found = dse.sweep(
        {
            "axes": {"device": "a100-80gb", "model": "llama2-7b", "quantizer": ["fp16", "nqkv", "fp8", "int8"]},
            "keep": ["measured_error", "throughput_tokens_per_s"],
            "measurements": str(tmp_path / "out" / "measurement.json"),
        }
    )
    errors = dict(zip(found["quantizer"], found["measured_error"], strict=True))
    assert errors["fp16"] == 0
    assert errors["nqkv"] > errors["fp8"] > 0
    assert np.isnan(errors["int8"])


def test_it_goes_on_where_it_was_stopped(run, sample, tmp_path, monkeypatch):
    whole, out = tmp_path / "whole", tmp_path / "out"
    measured(run, sample, whole)
    calls, real = [], measure.measure

    def stopping(*args):
        calls.append(args)
        if len(calls) == 6:  # in the third part: two contexts a part
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(measure, "measure", stopping)
    code, _, err = measured(run, sample, out)
    assert code == 130
    assert "goes on" in err
    assert not [name for name in RESULTS if (out / name).exists()]
    assert len(list((out / "parts").iterdir())) == 2
    monkeypatch.setattr(measure, "measure", real)
    code, text, _ = measured(run, sample, out)
    assert code == 0
    assert "2 parts were there already" in text
    for name in RESULTS[:3]:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert not list(out.rglob(".*part"))


def test_a_full_disk_leaves_finished_parts(run, sample, tmp_path, monkeypatch):
    real, out = files.write, tmp_path / "out"

    def full(path, content):
        if path.parent.name == "parts" and len(list(path.parent.glob("layer*"))) == 3:
            raise OutputError("cannot write: no space left on device")
        real(path, content)

    monkeypatch.setattr(files, "write", full)
    assert_one_line(measured(run, sample, out), 4, "no space left")
    assert not [name for name in RESULTS if (out / name).exists()]
    monkeypatch.setattr(files, "write", real)
    assert "3 parts were there already" in measured(run, sample, out)[1]


def test_damaged_parts_are_measured_again_and_methods_may_be_added(run, sample, tmp_path):
    out = tmp_path / "out"
    measured(run, sample, out, methods="nqkv")
    before = (out / "measured.parquet").read_bytes()
    part = next((out / "parts").iterdir())
    part.write_text(part.read_text().replace('"squared_error": ', '"squared_error": 1', 1))
    assert "1 parts were there already" in measured(run, sample, out, methods="nqkv")[1]
    assert (out / "measured.parquet").read_bytes() == before
    assert "2 parts were there already" in measured(run, sample, out, methods="nqkv,fp8")[1]
    part.write_bytes(b"\x00")
    assert "3 parts were there already" in measured(run, sample, out, methods="nqkv,fp8")[1]


def test_another_dump_or_other_options_need_another_directory(run, sample, tmp_path):
    out = tmp_path / "out"
    measured(run, sample, out, methods="nqkv")
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert_one_line(measured(run, sample, out, "--seed", "1"), 2, "begun with another seed")
    np.savez(tmp_path / "other.npz", **arrays(1))
    assert_one_line(measured(run, tmp_path / "other.npz", out), 2, "begun with another dump")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    assert_one_line(measured(run, sample, tmp_path / "full"), 2, "mine.txt", "another directory")
    assert_one_line(measured(run, sample, tmp_path / "full" / "mine.txt"), 2, "is a file")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept


X = np.ones((1, 2, 80, 16), np.float16)
NAN = X.copy()
NAN[0, 1, 7, 3] = np.nan
BAD = {
    "missing layer": (arrays(3, layer1_key=None, layer1_value=None), ["layer 1 missing", "--partial"]),
    "no values": (arrays(layer1_value=None), ["layer 1 has no values", "--partial"]),
    "other shape of values": (arrays(layer1_value=X[:, :, :79]), ["'layer1.value'", "[1, 2, 79, 16]", "same shape"]),
    "other layer shape": (arrays(layer1_key=X[:, :1], layer1_value=X[:, :1]), ["'layer1.key'", "and 1 more"]),
    "NaN": (arrays(layer1_key=NAN), ["kv.npz: tensor 'layer1.key': 1 of 2,560 values", "--nonfinite replace"]),
    "infinite": (arrays(layer1_value=-np.inf * X), ["'layer1.value': 2,560 of 2,560 values"]),
    "beyond FP16": (
        {n: x.astype("f4") * (1e6 if n == "layer1.key" else 1) for n, x in arrays().items()},
        ["'layer1.key'", "beyond 65504"],
    ),
    "mixed dtypes": (arrays(layer1_key=X.astype("f4")), ["mixed dtypes", "'layer1.key' is fp32"]),
    "three axes": (arrays(layer1_key=X[0]), ["'layer1.key'", "must be [batch, heads, tokens, head_dim]"]),
    "empty": (arrays(layer1_key=X[:, :, :0]), ["'layer1.key'", "no elements"]),
    "query of other tokens": (arrays(layer0_query=np.repeat(X, 2, axis=2)), ["'layer0.query'", "at most 80"]),
    "query heads": (arrays(layer0_query=np.ones((1, 3, 4, 16), "f2")), ["'layer0.query'", "multiple of 2"]),
    "query NaN": (arrays(layer1_query=NAN), ["'layer1.query': 1 of 2,560 values"]),
    "mark and metadata": (
        {**{n.replace("key", "key.before_rope"): x for n, x in arrays().items()}, "meta": meta(rope="after")},
        ["before RoPE", "metadata say after"],
    ),
    "two marks": (
        {"layer0.key.before_rope": X, "layer0.value": X, "layer1.key.after_rope": X, "layer1.value": X},
        ["one is before, one after RoPE"],
    ),
    "unknown mark": ({**arrays(), "meta": meta(rope="sideways")}, ["rope = 'sideways'", "after, before, none"]),
    "no theta": ({**arrays(), "meta": meta(rope="before")}, ["rope_theta is missing", "--rope-theta"]),
    "bad theta": ({**arrays(), "meta": meta(rope="before", rope_theta="1")}, ["rope_theta = 1.0", "above 1"]),
    "text theta": ({**arrays(), "meta": meta(rope_theta="big")}, ["rope_theta = 'big'"]),
    "position": ({**arrays(), "meta": meta(first_position="-1")}, ["first_position = '-1'"]),
    "synthetic": ({**arrays(), "meta": meta(synthetic="yes")}, ["synthetic = 'yes'"]),
    "numbers": ({**arrays(), "meta": meta(model=7)}, ["'meta'", "names to text"]),
    "no JSON": ({**arrays(), "meta": np.frombuffer(b"{", np.uint8)}, ["'meta'", "not valid JSON"]),
    "float meta": ({**arrays(), "meta": X}, ["'meta'", "must hold metadata"]),
    "much meta": ({**arrays(), "meta": meta(note="x" * 70_000)}, ["'meta'", "at most 65,536"]),
    "pickled": ({**arrays(), "layer2.key": np.array([{}], object)}, ["'layer2.key'", "dtype"]),
    "name": ({**arrays(), "weights": X}, ["'weights'", "layer0.key"]),
    "nothing": ({"meta": meta(model="x")}, ["no tensors"]),
}


@each("case", BAD)
def test_bad_dumps_are_one_line_and_leave_nothing(run, tmp_path, case):
    content, parts = BAD[case]
    path = tmp_path / "kv.npz"
    np.savez(path, **content)
    assert_one_line(measured(run, path, tmp_path / "out"), 5 if case == "much meta" else 2, *parts)
    assert not (tmp_path / "out").exists()
    code, text, err = run("measure", path, "--check")
    assert code in (2, 5)
    assert err.count("\n") == (0 if text else 1)
    assert "Traceback" not in err


def test_damaged_files_are_one_line_and_leave_nothing(run, sample, tmp_path):
    whole = sample.read_bytes()
    for name, content in {
        "cut.npz": whole[:-100],
        "half.npz": whole[: len(whole) // 2],
        "none.safetensors": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        assert_one_line(measured(run, tmp_path / name, tmp_path / "out"), 2, name)
    flipped = bytearray(whole)
    flipped[2000] ^= 1  # inside the values: found by the archive's checksum
    (tmp_path / "flip.npz").write_bytes(flipped)
    assert_one_line(measured(run, tmp_path / "flip.npz", tmp_path / "out"), 2, "flip.npz", "damaged")
    code, text, _ = run("measure", tmp_path / "flip.npz", "--check")
    assert (code, "damaged" in text) == (2, True)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("layer0.key.npy", bytes(10**8))
    assert_one_line(measured(run, tmp_path / "bomb.npz", tmp_path / "out"), 5, "bomb.npz", "unpack to")
    entry = '"layer%d.key":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}'
    header = ("{" + ",".join(entry % i for i in range(10**6)) + "}").encode()
    (tmp_path / "many.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert_one_line(measured(run, tmp_path / "many.safetensors", tmp_path / "out"), 2, "many.safetensors", "at most")
    assert_one_line(measured(run, sample, tmp_path / "out", "--max-bytes", "1000"), 5, "layer 0 takes 10,240 bytes")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--quantizers", "oaken", "--out", "o"], ["oaken", "--thresholds"]),
        (["--quantizers", "nqkv,,fp8", "--out", "o"], ["empty entry"]),
        (["--quantizers", "fp16", "--out", "o"], ["no kernel"]),
        (["--out", "o"], ["--quantizers is missing"]),
        (["--quantizers", "nqkv"], ["--out is missing"]),
        (["--quantizers", "nqkv", "--out", ""], ["not a directory name"]),
        (["--quantizers", "nqkv", "--out", "o", "--contexts", "0"], ["contexts = '0'", "1 to 80"]),
        (["--quantizers", "nqkv", "--out", "o", "--contexts", "81"], ["contexts = '81'", "1 to 80"]),
        (["--quantizers", "nqkv", "--out", "o", "--contexts", "1e3"], ["whole numbers"]),
        (["--quantizers", "nqkv", "--out", "o", "--queries", "-1"], ["queries = -1"]),
        (["--quantizers", "nqkv", "--out", "o", "--seed", "-1"], ["seed = -1"]),
        (["--quantizers", "nqkv", "--out", "o", "--rope", "mid"], ["rope = 'mid'"]),
        (["--quantizers", "nqkv", "--out", "o", "--rope", "before"], ["rope_theta is missing"]),
        (["--quantizers", "nqkv", "--out", "o", "--rope-theta", "1e999"], ["rope-theta = '1e999'"]),
        (["--quantizers", "nqkv", "--out", "o", "--nonfinite", "mask"], ["raise or replace"]),
        (["--quantizers", "nqkv", "--out", "o", "--heads", "0"], ["heads = 0"]),
    ],
)
def test_bad_requests_are_one_line(run, sample, tmp_path, monkeypatch, words, parts):
    monkeypatch.chdir(tmp_path)
    assert_one_line(run("measure", sample, *words), 2, *parts)
    assert not (tmp_path / "o").exists()


def test_bad_values_can_be_replaced_and_gaps_allowed(run, tmp_path):
    np.savez(tmp_path / "kv.npz", **arrays(3, layer1_key=None, layer1_value=None, layer2_key=NAN, layer2_value=None))
    words = ["--partial", "--nonfinite", "replace"]
    code, _, err = measured(run, tmp_path / "kv.npz", tmp_path / "out", *words)
    assert (code, err) == (0, "")
    table = pd.read_parquet(tmp_path / "out" / "measured.parquet")
    assert set(table[table["layer"] == 2]["side"]) == {"key"}
    assert table[table["layer"] == 2]["output_error"].isna().all()


def test_check_says_what_is_there_and_what_is_not(run, sample, tmp_path):
    code, text, _ = run("measure", sample, "--check")
    assert code == 0
    assert "toy, RoPE: not said, synthetic" in text
    assert (
        "2 layers: keys of 2, values of 2, queries of 0; [batch x heads x tokens x head_dim] = 1x2x80x16; fp16" in text
    )
    assert "lacks: queries of every layer" in text
    assert "ready to measure" in text
    np.savez(tmp_path / "nan.npz", **arrays(layer1_key=NAN))
    code, text, _ = run("measure", tmp_path / "nan.npz", "--check", "--json")
    found = json.loads(text)
    assert code == 2
    assert found["problems"] == [
        "tensor 'layer1.key': 1 of 2,560 values are NaN, infinite or beyond 65504: "
        "--nonfinite replace takes them as 0 and +-65504"
    ]


def test_metadata_of_safetensors_and_npz_say_the_same(tmp_path):
    about = {"model": "toy", "rope": "before", "rope_theta": "10000", "first_position": "3", "n_heads": "2"}
    np.savez(tmp_path / "kv.npz", **arrays(1), meta=meta(**about))
    header, values = {"__metadata__": about}, b""
    for name, x in arrays(1).items():
        header[name] = {"dtype": "F16", "shape": list(x.shape), "data_offsets": [len(values), len(values) + x.nbytes]}
        values += x.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "kv.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values)
    found = []
    for name in ("kv.npz", "kv.safetensors"):
        with open_dump(tmp_path / name) as dump:
            assert dump.metadata == about
            found.append(measure_run.source.about(dump, name, measure.layers(dump)))
    assert found[0] == found[1]
    assert (found[0].theta, found[0].first_position, found[0].n_heads) == (10000.0, 3, 2)


def test_a_layer_is_all_that_is_in_memory(sample, tmp_path, monkeypatch):
    """Each tensor is read once, in order of the layers, and never with those of another layer."""
    reads = []
    real = measure_run.Dump.read
    monkeypatch.setattr(measure_run.Dump, "read", lambda self, name: reads.append(name) or real(self, name))

    def silent(items, **_):
        import contextlib

        return contextlib.nullcontext(items)

    measure_run.run(str(sample), ["nqkv", "fp8"], str(tmp_path / "out"), MeasureOptions(), silent)
    assert reads == ["layer0.key", "layer0.value", "layer1.key", "layer1.value"]
    with pytest.raises(InputError, match="quantizers = 0"):
        measure_run.run(str(sample), [], str(tmp_path / "out"), MeasureOptions(), silent)


def test_a_directory_that_another_process_writes_is_left_alone(run, sample, tmp_path):
    with sweep_store.locked(tmp_path / "out"):
        assert_one_line(measured(run, sample, tmp_path / "out"), 3, "is being written by another measurement")


def test_without_queries_attention_is_left_out(run, sample, tmp_path):
    code, _, err = measured(run, sample, tmp_path / "out", "--queries", "0")
    assert (code, err) == (0, "")
    table = pd.read_parquet(tmp_path / "out" / "measured.parquet")
    assert set(table["side"]) == {"key", "value"}
    assert table[["output_error", "mass_moved", "kl_nats", "n_queries"]].isna().all(axis=None)
    assert not (tmp_path / "out" / "error_bits.svg").exists()
    assert measurements.load(tmp_path / "out" / "measurement.json").methods[0].tensors[0].output is None


def test_oaken_is_measured_again_with_other_thresholds(run, sample, tmp_path):
    other = tmp_path / "other.npz"
    np.savez(other, **kv_sample.arrays(kv_sample.synthetic(2, 2, 80, 16, 9)))
    for name, dump in (("a", sample), ("b", other)):
        assert run("thresholds", dump, "--out", tmp_path / f"{name}.toml")[0] == 0
    out = tmp_path / "out"
    assert measured(run, sample, out, "--thresholds", tmp_path / "a.toml", methods="oaken,nqkv")[0] == 0
    text = measured(run, sample, out, "--thresholds", tmp_path / "b.toml", methods="oaken,nqkv")[1]
    assert "2 parts were there already" in text  # NQKV's
    found = measurements.load(out / "measurement.json")
    assert [m.note for m in found.methods] == ["thresholds: b.toml", ""]


def test_keys_before_rope_are_quantised_as_stored(run, sample, tmp_path):
    about = meta(rope="before", rope_theta="10000")
    np.savez(tmp_path / "before.npz", **arrays(), meta=about)
    tables = []
    for path, out in ((sample, "after"), (tmp_path / "before.npz", "before")):
        text = measured(run, path, tmp_path / out, methods="kvquant")[1]
        assert ("kvquant: is defined on keys before RoPE" in text) == (out == "after")
        tables.append(pd.read_parquet(tmp_path / out / "measured.parquet"))
    after, before = tables
    assert after["squared_error"].equals(before["squared_error"])
    both = after["side"] == "both"
    assert (after[both]["output_error"] != before[both]["output_error"]).all()


@pytest.mark.parametrize("flat", [False, True])
def test_kvquant_takes_keys_before_rope_where_the_dump_says_how_they_were_turned(run, tmp_path, flat):
    rng = np.random.default_rng(8)
    key, value, query = (rng.normal(size=(1, n, 40, 16)).astype(np.float16) for n in (2, 2, 4))
    positions = np.arange(3, 43)

    def turned(x):
        return measure_errors.rotated(x.astype(np.float64), positions, 500.0).astype(np.float16)

    def shaped(x):
        return x[0].transpose(1, 0, 2).reshape(40, 32) if flat else x

    said = {"rope_theta": "500", "first_position": "3", "n_heads": "2"}
    tables = {}
    for rope, k, q in (("before", key, query), ("after", turned(key), turned(query))):
        path = tmp_path / f"{rope}.npz"
        np.savez(
            path,
            **{"layer0.key": shaped(k), "layer0.value": shaped(value), "layer0.query": q},
            meta=meta(rope=rope, **said),
        )
        code, out, err = measured(run, path, tmp_path / rope, methods="kvquant,nqkv:block=16")
        assert (code, err) == (0, ""), out
        assert ("to which these were turned back" in out) == (rope == "after")
        tables[rope] = pd.read_parquet(tmp_path / rope / "measured.parquet").set_index(["method", "side"])
    # turning there and back rounds to FP16 twice: a last digit of the keys, here and there a code
    for name in ("mse", "output_error", "kl_nats"):
        own = [tables[rope].loc["kvquant", name].dropna() for rope in ("before", "after")]
        assert len(own[0]) == len(own[1]) > 0
        assert np.allclose(*own, rtol=0.02), name
    # other methods take the keys as the dump holds them
    nqkv = [tables[rope].loc[("nqkv:block=16", "key"), "mse"].to_numpy() for rope in ("before", "after")]
    assert not np.allclose(*nqkv, rtol=0.02)


def test_queries_spread_over_the_context(run, tmp_path):
    # of 40 tokens 4 queries: the tokens 9, 19, 29, 39; of the last 10 that have queries: 31 (10 / 4), 34, 36, 39
    assert measure_errors.positions(40, 40, 4, True).tolist() == [9, 19, 29, 39]
    assert measure_errors.positions(40, 10, 4, True).tolist() == [31, 34, 36, 39]
    assert measure_errors.positions(40, 3, 4, True).tolist() == [37, 38, 39]
    assert measure_errors.positions(40, 40, 4, False).tolist() == [36, 37, 38, 39]
    rng = np.random.default_rng(9)
    tensors = {f"layer0.{side}": rng.normal(size=(1, 2, 96, 32)).astype(np.float16) for side in ("key", "value")}
    np.savez(tmp_path / "kv.npz", **tensors, **{"layer0.query": rng.normal(size=(1, 2, 96, 32)).astype(np.float16)})
    errors = {}
    for places in ("last", "spread"):
        words, methods = ("--query-places", places), "kivi:group=32,residual=32,bits=2,nqkv:block=32"
        assert measured(run, tmp_path / "kv.npz", tmp_path / places, *words, methods=methods)[0] == 0
        table = pd.read_parquet(tmp_path / places / "measured.parquet")
        assert set(table["queries"].dropna()) == {"dumped" if places == "last" else "dumped, spread"}
        own = table[(table["side"] == "value") & table["head"].isna() & (table["context_tokens"] == 96)]
        errors[places] = own["output_error"].to_numpy()
    # the last 32 values are exact: less of what early queries see
    assert errors["spread"][0] > errors["last"][0]
    bad = run("measure", tmp_path / "kv.npz", "--quantizers", "nqkv", "--query-places", "all", "--out", tmp_path / "x")
    assert_one_line(bad, 2, "query-places = 'all': must be last or spread")
    assert not (tmp_path / "x").exists()
