"""Tokens of a text by the tokenizers in model files."""

import json
from pathlib import Path

import numpy as np
import pytest

import model_files
from dse.core.errors import InputError
from dse.transformer import load, tokenizer

DATA = Path(__file__).parents[1] / "data"
#: by hand: BOS, then greedy by the order of the merges
BY_HAND = ["<s>", "t", "he", "Ġ", "r", "a", "in"]


@pytest.mark.parametrize("make", [model_files.directory, model_files.gguf_file])
def test_a_text_becomes_tokens_with_bos_in_front(tmp_path, make):
    found = load.load(str(make(tmp_path))).encode("the rain")
    assert [model_files.TOKENS[i] for i in found] == BY_HAND


def test_no_bos_where_the_file_says_so(tmp_path):
    changes = {"tokenizer.ggml.add_bos_token": False}
    found = load.load(str(model_files.gguf_file(tmp_path, **changes))).encode("the rain")
    assert [model_files.TOKENS[i] for i in found] == BY_HAND[1:]


def test_sentence_piece_gives_the_tokens_of_its_own_library():
    """Of sentencepiece 0.2.3 (scripts/tiny_sentence_piece.py)."""
    held = json.loads((DATA / "sentence_piece.json").read_text())
    meta = {"model": "llama", "tokens": held["pieces"], "scores": held["scores"], "add_bos_token": False}
    encode = tokenizer.of_gguf("x.gguf", lambda key, default=None: meta.get(key.rpartition(".")[2], default))
    for text, ids in held["texts"].items():
        assert encode(text) == ids, text


def test_llama_3_splits_digits_by_three_and_qwen_2_by_one():
    digits = [str(i) for i in range(10)]
    meta = {"model": "gpt2", "tokens": [*digits, "12", "123"], "merges": ["1 2", "12 3"], "bos_token_id": None}
    found = {}
    for kind in ("llama-bpe", "qwen2"):
        values = meta | {"pre": kind}
        encode = tokenizer.of_gguf("x.gguf", lambda key, default=None, v=values: v.get(key.rpartition(".")[2], default))
        found[kind] = encode("12345")
    assert found == {"llama-bpe": [11, 4, 5], "qwen2": [1, 2, 3, 4, 5]}


def test_the_first_tokens_of_a_long_text_are_those_of_the_whole(tmp_path):
    model, path = load.load(str(model_files.directory(tmp_path))), tmp_path / "t.txt"
    path.write_text(model_files.TEXT * 50)
    found = tokenizer.tokens_of(str(path), model.encode, 30, 128, "toy")
    assert np.array_equal(found, model.encode(model_files.TEXT * 50)[:30])


def test_without_the_library_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    model = load.load(str(model_files.directory(tmp_path)))
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"needs the package tokenizers: pip install 'kv-dse\[models\]'"):
        model.encode("the")
