"""Keys, values and queries of a text in a language model, as a dump that `dse measure` reads, a layer at a time."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from dse.core import files
from dse.core.errors import InputError, LimitError, OutputError, show
from dse.core.progress import Progress
from dse.measure.dumps.writer import fp16_header
from dse.transformer.checkpoint import Architecture, Checkpoint
from dse.transformer.forward import Attention, LayerHeads, exact, hidden_states, turned

#: bytes of a dump that is written
MAX_BYTES = 2**38
ROPES = ("after", "before")


@dataclass(frozen=True, kw_only=True)
class WrittenDump:
    """A dump that was written."""

    out: str
    model: str
    family: str
    n_layers: int
    n_tokens: int
    n_kv_heads: int
    n_q_heads: int
    head_dim: int
    rope: str
    rope_theta: float | None
    n_bytes: int
    note: str

    def text(self) -> str:
        """The file and what it holds."""
        name, heads = (
            f"{self.model} ({self.family})",
            f"{self.n_kv_heads} KV and {self.n_q_heads} query heads of {self.head_dim}",
        )
        lines = [
            f"dump: {self.out} ({self.n_bytes:,} bytes)",
            f"  {name}: {self.n_layers} layers, {self.n_tokens:,} tokens, {heads}, {self.rope} RoPE",
        ]
        return "\n".join([*lines, *([f"  note: {self.note}"] if self.note else [])])

    def to_json(self) -> dict[str, Any]:
        """Sizes and facts as data."""
        return asdict(self)


def write(
    model: Checkpoint, tokens: np.ndarray, out: str, rope: str, n_queries: int | None, text: str, progress: Progress
) -> WrittenDump:
    """Write keys, values and the last queries (None: all) of tokens [n]; the file appears whole or not at all.

    FP16: layerN.key, .value [1, KV heads, tokens, head_dim], .query [1, query heads, queries, head_dim]. Raises
    InputError for a bad option, LimitError for more than MAX_BYTES and values beyond FP16, OutputError.
    """
    path, of, n = Path(out), model.architecture, len(tokens)
    if path.suffix.lower() != ".safetensors" or "\0" in out:
        raise InputError(f"out = {show(out)}: must end in .safetensors")
    if path.is_dir():
        raise OutputError(f"cannot write {show(out)}: is a directory: give a file with --out")
    if rope not in ROPES:
        raise InputError(f"rope = {show(rope)}: must be one of {', '.join(ROPES)}")
    n_kept = n if n_queries is None else n_queries
    if not 0 <= n_kept <= n:
        raise InputError(f"queries = {n_kept:,}: must be 0 to {n:,}, the tokens")
    n_bytes = 2 * of.n_layers * of.head_dim * (2 * of.n_kv_heads * n + of.n_q_heads * n_kept)
    if n_bytes > MAX_BYTES:
        raise LimitError(f"the dump takes {n_bytes:,} bytes: at most {MAX_BYTES:,} are written: give fewer --tokens")
    theta, note = _theta(of), _note(of, n)
    about = {"model": model.name, "rope": rope, "note": "; ".join([f"{n} tokens of {text}", *([note] if note else [])])}
    if theta is not None:
        about["rope_theta"] = f"{theta:.10g}"
    with files.writing(path) as file:
        file.write(fp16_header(about, _shapes(of, n, n_kept)))
        hidden_states(model, tokens, [_writing(file, of, rope == "after", n_kept)], progress, "dumping")
    return WrittenDump(
        out=out,
        model=model.name,
        family=of.family,
        n_layers=of.n_layers,
        n_tokens=n,
        n_kv_heads=of.n_kv_heads,
        n_q_heads=of.n_q_heads,
        head_dim=of.head_dim,
        rope=rope,
        rope_theta=theta,
        n_bytes=path.stat().st_size,
        note=note,
    )


def _shapes(of: Architecture, n: int, n_kept: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for layer in range(of.n_layers):
        for side, n_heads, n_own in (
            ("key", of.n_kv_heads, n),
            ("value", of.n_kv_heads, n),
            ("query", of.n_q_heads, n_kept),
        ):
            if n_own:
                yield f"layer{layer}.{side}", (1, n_heads, n_own, of.head_dim)


def _theta(of: Architecture) -> float | None:
    """The base of RoPE where it is one plain one for all channels of all layers, as a dump can say it."""
    first = of.rotations[0]
    is_one = all(rotation.is_plain and rotation.theta == first.theta for rotation in of.rotations)
    return first.theta if is_one and 2 * len(first.frequencies) == of.head_dim else None


def _note(of: Architecture, n: int) -> str:
    """Properties of the model's attention that `dse measure` leaves out."""
    windows = {window for window in of.windows if window is not None and window < n}
    notes = []
    if windows:
        notes.append(f"layers with a window of {min(windows):,} tokens are measured over all tokens")
    if of.score_cap is not None:
        notes.append(f"the soft cap of {of.score_cap:g} on attention scores is left out")
    if _theta(of) is None:
        notes.append("RoPE is scaled or differs by layer: no rope_theta")
    return "; ".join(notes)


def _writing(file: IO[bytes], of: Architecture, after: bool, n_kept: int) -> Attention:
    """Exact attention that writes what each layer caches, and its queries as if scaled by 1/sqrt(head_dim)."""
    attention = exact(of)
    scale = np.float32(of.query_scale * math.sqrt(of.head_dim))

    def write_layer(layer: int, heads: LayerHeads) -> np.ndarray:
        query = heads.query * scale
        sides = {"key": heads.key, "value": heads.value, "query": query}
        if after:
            sides |= {side: turned(sides[side], of.rotations[layer]) for side in ("key", "query")}
        sides["query"] = sides["query"][:, len(query[0]) - n_kept :]
        for side, x in sides.items():
            with np.errstate(over="ignore"):
                kept = x.astype("<f2")
            if not np.isfinite(kept).all():
                largest = float(np.abs(x).max())
                raise LimitError(f"layer {layer}: {side} of {largest:g}: a dump holds FP16, at most 65504")
            file.write(np.ascontiguousarray(kept).tobytes())
        return attention(layer, heads)

    return write_layer
