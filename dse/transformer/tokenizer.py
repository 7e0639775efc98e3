"""Tokenizers of model files, by the package `tokenizers`; and a text file as tokens."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dse.core import files, specfile
from dse.core.errors import InputError, clean, install, show

#: bytes of a text that are read
MAX_TEXT_BYTES = 2**28
#: bytes of a tokenizer.json that are read: Gemma 3's has 33 million
MAX_TOKENIZER_BYTES = 2**27
#: characters of a piece of SentencePiece, of which all cuts in two are tried; Gemma's longest, of blanks, has 31
MAX_PIECE = 256
#: characters that are tokenized for a token that is asked for; more only where these were too few
CHARACTERS_PER_TOKEN = 16
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: what splits a text before BPE, by tokenizer.ggml.pre (src/llama-vocab.cpp of llama.cpp); "": GPT-2's own
_SPLITS = {
    "gpt-2": "",
    "smollm": "",
    "llama-bpe": _CONTRACTIONS + r"\p{N}{1,3}" + _REST,
    "llama3": _CONTRACTIONS + r"\p{N}{1,3}" + _REST,
    "qwen2": _CONTRACTIONS + r"\p{N}" + _REST,
}
_SPACE = "\u2581"
Encode = Callable[[str], list[int]]


def _library(path: str | Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(f"{path}: its tokenizer needs the package tokenizers: {install('models')}") from error
    return tokenizers


@contextlib.contextmanager
def _refused(path: str | Path) -> Iterator[None]:
    """Turn what the package raises into an InputError: `Exception` from Python, its panics beside it."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = clean(str(error), 100)
        raise InputError(f"{path}: its tokenizer cannot be read: {reason}: download it again") from error


def of_hugging_face(path: Path) -> Encode:
    """The tokenizer of a tokenizer.json. Reading it raises InputError."""

    @cache
    def made() -> Any:
        library = _library(path)
        if not os.path.lexists(path):
            raise InputError(f"{path}: is missing: a directory needs its tokenizer.json")
        content = files.read_bytes(path, MAX_TOKENIZER_BYTES, "tokenizer", "a tokenizer.json", "download it again")
        with _refused(path):
            tokenizer = library.Tokenizer.from_str(specfile.decoded(str(path), content))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            return tokenizer

    def encode(text: str) -> list[int]:
        tokenizer = made()
        with _refused(path):
            return list(tokenizer.encode(text).ids)

    return encode


def of_gguf(path: str, value: Callable[..., Any]) -> Encode:
    """The tokenizer in a GGUF file's metadata, BOS in front where they say so. Making it raises InputError."""

    @cache
    def made() -> tuple[Any, list[int]]:
        library = _library(path)
        kind, tokens = value("tokenizer.ggml.model"), value("tokenizer.ggml.tokens")
        if kind not in ("gpt2", "llama") or not isinstance(tokens, list):
            raise InputError(
                f"{path}: tokenizer {show(kind)}: cannot be read; known: gpt2 (BPE), llama (SentencePiece)"
            )
        if not all(isinstance(token, str) for token in tokens):
            raise InputError(f"{path}: tokenizer.ggml.tokens: must be text: download the file again")
        with _refused(path):
            encoder = _bpe(path, library, value, tokens) if kind == "gpt2" else _sentence_piece(library, value, tokens)
        by_default = kind == "llama" or value("tokenizer.ggml.pre") in ("llama-bpe", "llama3")
        bos = value("tokenizer.ggml.bos_token_id")
        if bos is not None and type(bos) is not int:
            raise InputError(f"{path}: tokenizer.ggml.bos_token_id = {show(bos)}: must be a whole number")
        return encoder, [bos] if value("tokenizer.ggml.add_bos_token", by_default) and bos is not None else []

    def encode(text: str) -> list[int]:
        encoder, first = made()
        with _refused(path):
            return [*first, *encoder.encode(text, add_special_tokens=False).ids]

    return encode


def _bpe(path: str, library: Any, value: Callable[..., Any], tokens: list[str]) -> Any:
    kind, merges = value("tokenizer.ggml.pre"), value("tokenizer.ggml.merges")
    if not isinstance(kind, str) or kind not in _SPLITS:
        raise InputError(f"{path}: tokenizer.ggml.pre = {show(kind)}: cannot be read; known: {', '.join(_SPLITS)}")
    if not isinstance(merges, list):
        raise InputError(f"{path}: tokenizer.ggml.merges is missing: download the file again")
    before = library.pre_tokenizers
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = library.Tokenizer(
        library.models.BPE(
            vocab=vocabulary,
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=kind in ("llama-bpe", "llama3"),
        )
    )
    split = _SPLITS[kind]
    steps = [before.Digits(individual_digits=True)] if kind == "smollm" else []
    steps += [before.Split(library.Regex(split), "isolated")] if split else []
    steps += [before.ByteLevel(add_prefix_space=False, use_regex=not split)]
    tokenizer.pre_tokenizer = before.Sequence(steps)
    if kind == "qwen2":
        tokenizer.normalizer = library.normalizers.NFC()
    return tokenizer


def _sentence_piece(library: Any, value: Callable[..., Any], tokens: list[str]) -> Any:
    """SentencePiece's BPE: each way to make a token of two is a merge, tokens of the best score first."""
    scores = value("tokenizer.ggml.scores")
    if longest := max(tokens, key=len, default="")[MAX_PIECE:]:
        raise ValueError(f"a piece has {MAX_PIECE + len(longest):,} characters")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token, i in vocabulary.items():
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [
            (vocabulary[left], vocabulary[right], left, right)
            for left, right in cuts
            if left in vocabulary and right in vocabulary
        ]
        merges += [(-scores[i], left, right) for _, _, left, right in sorted(pairs)]
    merges.sort(key=lambda merge: merge[0])
    unknown = value("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = library.Tokenizer(
        library.models.BPE(
            vocab=vocabulary,
            merges=[merge[1:] for merge in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [library.normalizers.Prepend(_SPACE)] if value("tokenizer.ggml.add_space_prefix", True) else []
    tokenizer.normalizer = library.normalizers.Sequence([*steps, library.normalizers.Replace(" ", _SPACE)])
    return tokenizer


def tokens_of(path: str, encode: Encode, n_tokens: int, context_tokens: int, model: str) -> np.ndarray:
    """The first `n_tokens` of a text file, int64. Raises InputError for a file, a text or a number that cannot be."""
    if not 2 <= n_tokens <= context_tokens:
        raise InputError(f"tokens = {n_tokens:,}: must be 2 to {context_tokens:,}, the context of {model}")
    text = _text(path)
    ids = encode(text[: CHARACTERS_PER_TOKEN * n_tokens])
    if len(ids) <= n_tokens:  # a cut may have made the last token another one
        ids = encode(text)
    if len(ids) < n_tokens:
        raise InputError(f"{path}: has {len(ids):,} tokens, --tokens {n_tokens:,}: give a longer text or fewer tokens")
    return np.array(ids[:n_tokens], np.int64)


def _text(path: str) -> str:
    content = files.read_bytes(path, MAX_TEXT_BYTES, "text", "the path of a text file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start:,} is not UTF-8: convert the text to UTF-8") from error
