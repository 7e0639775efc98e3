"""`dse synthesize`: a synthetic KV cache as a dump that says of itself that it is synthetic."""

import itertools
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from dse.core import files
from dse.core.errors import InputError, LimitError, OutputError, show
from dse.core.progress import Progress
from dse.measure.dumps.writer import fp16_header
from dse.measure.recipe import Recipe
from dse.measure.synthetic import layer_of

#: bytes of a dump that is written; it is made layer by layer
MAX_BYTES = 2**38
ENDINGS = (".npz", ".safetensors")


def about(recipe: Recipe) -> dict[str, str]:
    """The metadata of the dump."""
    return {"model": "synthetic", "rope": "after", "synthetic": "true", "note": f"dse synthesize: {recipe.text()}"}


def shapes(recipe: Recipe) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Names and shapes of the tensors, in their order in the file."""
    tokens = {"key": recipe.n_tokens, "value": recipe.n_tokens, "query": recipe.n_queries}
    for layer in range(recipe.n_layers):
        for side, n in tokens.items():
            if n:
                yield f"layer{layer}.{side}", (1, recipe.n_heads, n, recipe.head_dim)


def size(recipe: Recipe) -> int:
    """Bytes of the tensors, in FP16."""
    n_elements = (2 * recipe.n_tokens + recipe.n_queries) * recipe.n_heads * recipe.head_dim * recipe.n_layers
    return n_elements * np.dtype(np.float16).itemsize


def write(out: str, recipe: Recipe, progress: Progress) -> None:
    """Write the dump, a layer in memory at a time; it appears whole or not at all.

    Raises InputError for another ending and for values beyond FP16, LimitError for more than MAX_BYTES, OutputError.
    """
    path = Path(out)
    if path.suffix.lower() not in ENDINGS or "\0" in out:
        raise InputError(f"out = {show(out)}: must end in {' or '.join(ENDINGS)}")
    if path.is_dir():
        raise OutputError(f"cannot write {show(out)}: is a directory: give a file with --out")
    if size(recipe) > MAX_BYTES:
        raise LimitError(f"the dump takes {size(recipe):,} bytes: at most {MAX_BYTES:,} are written: make it smaller")
    layers = range(recipe.n_layers)
    with files.writing(path) as file, progress(layers, label="synthesizing", length=recipe.n_layers) as shown:
        (_npz if path.suffix.lower() == ".npz" else _safetensors)(file, recipe, shown)
    files.sync(path.parent)


def _tensors(recipe: Recipe, layers: Any) -> Iterator[tuple[str, np.ndarray]]:
    for layer in layers:
        sample, query = layer_of(recipe, layer)
        for side, x in {**sample._asdict(), "query": query}.items():
            if x is None:
                continue
            if not np.isfinite(x).all():
                raise InputError(f"layer {layer}: {side}s are beyond 65504, FP16's largest: give smaller ranges")
            yield f"layer{layer}.{side}", x


def _npz(file: IO[bytes], recipe: Recipe, layers: Any) -> None:
    meta = np.frombuffer(json.dumps(about(recipe)).encode(), np.uint8)
    with zipfile.ZipFile(file, "w") as archive:
        for name, x in itertools.chain([("meta", meta)], _tensors(recipe, layers)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, x, allow_pickle=False)


def _safetensors(file: IO[bytes], recipe: Recipe, layers: Any) -> None:
    file.write(fp16_header(about(recipe), shapes(recipe)))
    for _, x in _tensors(recipe, layers):
        file.write(x.astype("<f2", copy=False).tobytes())
