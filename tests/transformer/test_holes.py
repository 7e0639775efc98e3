"""Model files that were made to do harm: each ends in one line, at once, whatever it announces."""

import contextlib
import dataclasses
import os
import resource
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import model_files
from cases import each
from dse.core.errors import DseError, LimitError
from dse.transformer import load
from dse.transformer.gguf_header import GgufFile
from factories import assert_one_line


@pytest.fixture
def little_memory():
    """Two gigabytes more than are taken: what fills all memory ends here, not on the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**31, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _pipe(path):
    os.mkfifo(path)


def _endless(path):
    path.symlink_to("/dev/zero")


def _loop(path):
    path.symlink_to(path)


def _huge(path):
    path.touch()
    os.truncate(path, 2**40)


@each(
    ("make", "say"),
    [(_pipe, "not a regular file"), (_endless, "not a regular file"), (_loop, "link loop"), (_huge, "")],
)
@each("name", ["config.json", "tokenizer.json", "model.safetensors", "x.gguf", "t.txt"])
@pytest.mark.usefixtures("little_memory")
def test_what_is_no_file_is_one_line(run, tmp_path, name, make, say):
    folder, text = model_files.directory(tmp_path), tmp_path / "t.txt"
    text.write_text(model_files.TEXT)
    path = tmp_path / name if name in ("x.gguf", "t.txt") else folder / name
    path.unlink(missing_ok=True)
    make(path)
    model = path if name == "x.gguf" else folder
    words = ["dump", "--model", model, "--text", text, "--tokens", 20, "--out", tmp_path / "kv.safetensors"]
    assert_one_line(run(*words), 2, name, say)
    path.unlink()


@pytest.mark.usefixtures("little_memory")
def test_other_commands_that_read_models_open_them_alike(run, tmp_path):
    pipe, text, out = tmp_path / "x.gguf", tmp_path / "t.txt", tmp_path / "out"
    text.write_text(model_files.TEXT)
    os.mkfifo(pipe)
    for words in (
        ("measure", "--perplexity", "--model", pipe, "--text", text, "--tokens", 20, "--quantizers", "fp8"),
        ("study", pipe, "--texts", text, "--calibration", text, "--name", "toy"),
    ):
        assert_one_line(run(*words, "--out", out), 2, "x.gguf", "not a regular file")
    assert not out.exists()


def _text(word):
    return struct.pack("<Q", len(word)) + word.encode()


def _file(n_tensors, n_keys, rest=b"", size=113):
    return (b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + rest).ljust(size, b"\0")


@each(
    ("content", "say"),
    [
        (_file(0, 2**40), "announces 1,099,511,627,776 keys in 113 bytes"),
        (_file(2**63, 0), "announces 9,223,372,036,854,775,808 tensors in 113 bytes"),
        (_file(0, 1, struct.pack("<Q", 2**40)), "wants 1,099,511,627,776 bytes more at byte 32 of 113"),
        (_file(0, 1, _text("a") + struct.pack("<IIQ", 9, 8, 2**40)), "announces 1,099,511,627,776 texts"),
        (_file(0, 1, _text("a") + struct.pack("<IIQ", 9, 4, 2**62)), "announces 4,611,686,018,427,387,904 numbers"),
        (_file(0, 1, _text("a") + struct.pack("<II", 9, 9)), "holds an array of type 9"),
        (_file(0, 1, _text("a") + struct.pack("<I", 13)), "holds a value of type 13"),
        (_file(0, 2, 2 * (_text("a") + struct.pack("<II", 4, 1))), "key 'a' is there twice"),
        (_file(1, 0, _text("w") + struct.pack("<I", 2**31)), "has 2,147,483,648 axes"),
        (_file(1, 0, _text("w") + struct.pack("<IQIQ", 1, 2**60, 0, 0)), "ends at byte 4,611,686,018,427,387,"),
        (_file(1, 0, _text("w") + struct.pack("<IQIQ", 1, 33, 8, 0)), "has the shape [33] of type Q8_0"),
        (_file(1, 0, _text("w") + struct.pack("<IQIQ", 1, 1, 999, 0)), "is of type 999"),
        (_file(1, 0, _text("w") + struct.pack("<IQIQ", 1, 1, 0, 7)), "begins at byte 7 of the values"),
        (_file(2, 0, 2 * (_text("w") + struct.pack("<IQIQ", 1, 1, 0, 0))), "tensor 'w' is there twice"),
        (
            _file(2, 0, b"".join(_text(name) + struct.pack("<IQIQ", 1, 1, 0, 0) for name in "vw"), 200),
            "tensor 'w' begins at byte 0 of the values, in another one",
        ),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GG", "begins with b'GG'"),
    ],
)
def test_no_announced_number_is_believed(tmp_path, content, say):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(DseError) as caught:
        GgufFile(str(path))
    assert say in str(caught.value)


def test_the_header_and_the_blocks_are_those_that_the_package_reads(tmp_path):
    path, kinds = tmp_path / "x.gguf", gguf.GGMLQuantizationType
    x = np.random.default_rng(0).standard_normal((8, 4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in {"a.texts": ["ä", "", "b"], "a.numbers": [1.5, -2.0], "a.whole": [1, 2], "a.is": [True]}.items():
        writer.add_array(name, value)
    for kind in (kinds.Q8_0, kinds.Q4_0, kinds.Q5_1, kinds.BF16, kinds.F16, kinds.F32):
        writer.add_tensor(kind.name, gguf.quants.quantize(x[0], kind), raw_dtype=kind)
    writer.add_tensor("one", x[0, 0])
    writer.add_tensor("three", x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = GgufFile(str(path)), gguf.GGUFReader(path)
    known = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.meta == known
    assert len(theirs.tensors) == 8
    for tensor in theirs.tensors:
        wanted = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        assert np.array_equal(ours.read(tensor.name), wanted)
        if wanted.ndim == 2:
            assert np.array_equal(ours.read(tensor.name, np.array([3, 0, 3])), wanted[[3, 0, 3]])


@each(
    "changes",
    [
        {"num_hidden_layers": 2**40},
        {"hidden_size": 2.5},
        {"num_key_value_heads": 0},
        {"max_position_embeddings": "many"},
        {"rms_norm_eps": [1]},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8, "low_freq_factor": 4}},
        {"sliding_window": -1},
        {"head_dim": 2**40},
        {"query_pre_attn_scalar": 0, "model_type": "gemma2"},
    ],
)
def test_a_number_that_no_model_has_is_one_line(run, tmp_path, changes):
    model, text = model_files.directory(tmp_path, "mistral", **changes), tmp_path / "t.txt"
    text.write_text(model_files.TEXT)
    words = ["dump", "--model", model, "--text", text, "--tokens", 20, "--out", tmp_path / "kv.safetensors"]
    assert_one_line(run(*words), 2, str(tmp_path))


def test_a_tokenizer_pads_nothing(tmp_path):
    """A padding to 2^40 tokens ends the process where memory is asked for."""
    folder = model_files.directory(tmp_path)
    path, tokens = folder / "tokenizer.json", load.load(str(folder)).encode("the rain")
    padding = '"padding": {"strategy": {"Fixed": 1099511627776}, "direction": "Right", "pad_to_multiple_of": null, '
    padding += '"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}'
    assert '"padding": null' in path.read_text()
    path.write_text(path.read_text().replace('"padding": null', padding))
    assert load.load(str(folder)).encode("the rain") == tokens


def test_a_token_beyond_the_embedding_is_one_line(tmp_path):
    model = load.load(str(model_files.directory(tmp_path)))
    with pytest.raises(DseError, match="token 64: its embedding has 64"):
        model.embedded(np.array([0, 64]))


def test_a_layer_beyond_all_memory_is_refused_before_it_is_read(tmp_path):
    """A file with room for it may have no bytes: a sparse one."""
    model = load.load(str(model_files.directory(tmp_path)))
    with pytest.raises(LimitError, match=r"layer 1 takes 17,592,186,[\d,]+ bytes: this machine has"):
        dataclasses.replace(model, shapes={**model.shapes, "1.q": (2**22, 2**20)})
    for name, shape in (("embedding", (64, 33)), ("final_norm", (1,)), ("head", (65, 32))):
        with pytest.raises(DseError, match=f"weight {name}: shape"):
            dataclasses.replace(model, shapes={**model.shapes, name: shape})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = model_files.gguf_file(tmp_path_factory.mktemp("whole"))
    return path.read_bytes(), min(tensor.start for tensor in GgufFile(str(path)).tensors.values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=2 * settings.default.max_examples)
@given(st.data())
def test_any_change_of_a_header_ends_in_a_model_or_a_line(whole, tmp_path, data):
    raw, n_header = whole
    changed = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, n_header - 9))
        word = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]) | st.integers(0, 255))
        size = data.draw(st.sampled_from([1, 4, 8]))
        changed[at : at + size] = (word % 2 ** (8 * size)).to_bytes(size, "little")
    path = tmp_path / "x.gguf"
    path.write_bytes(changed[: data.draw(st.sampled_from([len(raw), n_header, n_header // 2]))])
    with contextlib.suppress(DseError):
        model = load.load(str(path))
        model.embedded(np.array(model.encode("the rain"), np.int64))
        for layer in range(min(model.n_layers, 3)):
            model.layer(layer)
