"""`dse dump`: the file is what `dse measure` reads; every bad input is one line."""

import json
import sys

import numpy as np
import pytest

import model_files
from cases import each
from dse.measure.dumps import open_dump
from factories import assert_one_line


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(model_files.TEXT)
    return path


def test_a_dump_holds_what_the_model_caches(run, tmp_path, text):
    model, out = model_files.directory(tmp_path, "mistral"), tmp_path / "kv.safetensors"
    code, shown, err = run("dump", "--model", model, "--text", text, "--tokens", 40, "--out", out, "--queries", 16)
    assert code == 0, err
    assert "mistral (mistral): 3 layers, 40 tokens, 2 KV and 4 query heads of 16, after RoPE" in shown
    assert "note: layers with a window of 8 tokens are measured over all tokens" in shown
    with open_dump(out) as dump:
        assert dump.metadata["rope"] == "after"
        assert dump.metadata["rope_theta"] == "10000"
        assert [t.name for t in dump.tensors][:3] == ["layer0.key", "layer0.value", "layer0.query"]
        assert {t.shape for t in dump.tensors} == {(1, 2, 40, 16), (1, 4, 16, 16)}
    code, shown, err = run("measure", out, "--check")
    assert code == 0
    assert "queries of 3" in shown
    assert "ready to measure" in shown


def test_keys_before_rope_turn_into_those_after_it(run, tmp_path, text):
    model, found = model_files.gguf_file(tmp_path), {}
    for rope in ("before", "after"):
        out = tmp_path / f"{rope}.safetensors"
        code, _, err = run("dump", "--model", model, "--text", text, "--tokens", 20, "--out", out, "--rope", rope)
        assert code == 0, err
        with open_dump(out) as dump:
            found[rope] = [dump.read(f"layer1.{side}")[0].astype(float) for side in ("key", "query")]
    for before, after in zip(found["before"], found["after"], strict=True):
        half = before.shape[-1] // 2  # by hand: channel i with i + half, 10,000^(-i / half) radians a token
        angle = np.arange(20)[:, None] * 10_000.0 ** (-np.arange(half) / half)
        turned = (before[..., :half] + 1j * before[..., half:]) * np.exp(1j * angle)
        assert np.abs(np.concatenate((turned.real, turned.imag), -1) - after).max() < 4e-3


def test_the_sizes_of_a_dump_as_json(run, tmp_path, text):
    model, out = model_files.directory(tmp_path, "gemma3"), tmp_path / "kv.safetensors"
    code, shown, _ = run("dump", "--model", model, "--text", text, "--tokens", 9, "--out", out, "--json")
    found = json.loads(shown)
    assert code == 0
    assert found["n_bytes"] == out.stat().st_size
    assert found["rope_theta"] is None


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return path


def _without(path, name):
    (path / name).unlink()
    return path


@each(
    ("make", "parts"),
    [
        (lambda at: _cut(model_files.gguf_file(at)), ("is cut or damaged", "download the file again")),
        (lambda at: _file(at / "x.gguf", b"PK\3\4 and so on"), ("begins with b'PK", "b'GGUF'")),
        (lambda at: at / "none.gguf", ("none.gguf: cannot be read: no such file",)),
        (lambda at: at / "x.bin", ("must be a .gguf file, or a directory",)),
        (lambda at: model_files.gguf_file(at, family="mamba"), ("architecture 'mamba'", "known: llama")),
        (lambda at: model_files.gguf_file(at, **{"tokenizer.ggml.model": "bert"}), ("tokenizer 'bert'", "known: gpt2")),
        (lambda at: model_files.gguf_file(at, **{"tokenizer.ggml.pre": "tekken"}), ("'tekken'", "known: gpt-2")),
        (lambda at: model_files.gguf_file(at, **{"llama.rope.scaling.type": "yarn"}), ("RoPE scaled by 'yarn'",)),
        (lambda at: model_files.gguf_file(at, **{"llama.expert_count": 8}), ("mixtures of experts cannot be run",)),
        (lambda at: model_files.gguf_file(at, **{"llama.attention.head_count_kv": 3}), ("must divide query heads",)),
        (lambda at: model_files.gguf_file(at, **{"llama.embedding_length": 64}), ("weight", "must be")),
        (lambda at: model_files.directory(at, model_type="mamba"), ("architecture 'mamba'", "known: llama")),
        (lambda at: model_files.directory(at, hidden_act="relu"), ("activation 'relu'",)),
        (lambda at: model_files.directory(at, quantization_config={"bits": 4}), ("are read from GGUF files only",)),
        (lambda at: model_files.directory(at, rope_parameters={"rope_type": "dynamic"}), ("RoPE scaled by 'dynamic'",)),
        (lambda at: model_files.directory(at, rope_parameters={"rope_type": "yarn"}), ("factor = ", "positive number")),
        (
            lambda at: model_files.directory(at, "phi3", rope_parameters={"rope_type": "longrope", "rope_theta": 1e4}),
            ("short_factor: must be", "one a pair of channels"),
        ),
        (lambda at: model_files.directory(at, num_hidden_layers=4), ("layer 3", "is missing")),
        (lambda at: _without(model_files.directory(at), "tokenizer.json"), ("tokenizer.json: is missing",)),
        (lambda at: _without(model_files.directory(at), "config.json"), ("config.json: cannot be read",)),
        (lambda at: _without(model_files.directory(at), "model.safetensors"), ("holds no .safetensors file",)),
    ],
)
def test_a_model_that_cannot_be_run_is_one_line(run, tmp_path, make, parts):
    at = tmp_path
    text, out = at / "t.txt", at / "kv.safetensors"
    text.write_text(model_files.TEXT)
    assert_one_line(run("dump", "--model", make(at), "--text", text, "--tokens", 20, "--out", out), 2, *parts)
    assert not out.exists()


def _file(path, content):
    path.write_bytes(content)
    return path


@each(
    ("content", "options", "parts"),
    [
        (b"the rain", ("--tokens", 20), ("has 7 tokens, --tokens 20", "give a longer text")),
        (b"the \xff rain", ("--tokens", 5), ("byte 4 is not UTF-8",)),
        (b"the rain", ("--tokens", 10**6), ("tokens = 1,000,000: must be 2 to 128, the context of",)),
        (b"the rain", ("--tokens", 1), ("tokens = 1: must be 2 to 128",)),
        (b"the rain", ("--tokens", 5, "--rope", "during"), ("rope = 'during'", "after, before")),
        (b"the rain", ("--tokens", 5, "--queries", 6), ("queries = 6: must be 0 to 5",)),
        (b"the rain", ("--tokens", 5, "--out", "kv.npz"), ("must end in .safetensors",)),
    ],
)
def test_a_text_or_an_option_that_will_not_do_is_one_line(run, tmp_path, content, options, parts):
    at = tmp_path
    text = _file(at / "t.txt", content)
    where = () if "--out" in options else ("--out", at / "kv.safetensors")
    result = run("dump", "--model", model_files.directory(at), "--text", text, *options, *where)
    assert_one_line(result, 2, *parts)


def test_a_text_that_is_not_there_is_one_line(run, tmp_path, monkeypatch):
    model = model_files.directory(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = run("dump", "--model", model, "--tokens", 9, "--text", "no.txt", "--out", "kv.safetensors")
    assert_one_line(result, 2, "no.txt", "no such file")


def test_without_gguf_one_line_says_how_to_get_it(run, tmp_path, text, monkeypatch):
    model = model_files.gguf_file(tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    result = run("dump", "--model", model, "--text", text, "--tokens", 9, "--out", tmp_path / "kv.safetensors")
    assert_one_line(result, 2, "needs the package gguf: pip install 'kv-dse[models]'")
