"""Makes the sample that ships from dumps of SmolLM2-135M, and what is measured on it.

`python -m scripts.ship_sample PROSE CODE FOLDER`: dumps of two texts (dse/data/README.md names them), each made by
`dse dump --model SmolLM2-135M-Instruct.Q4_1.gguf --text TEXT --tokens 1024 --queries 1024 --out DUMP`.
"""

import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from dse.measure import dump, kernels, run
from dse.measure.dumps import open_dump
from dse.measure.options import MeasureOptions
from dse.specs import measurements
from dse.specs.oaken_grid import SAMPLE

#: quantizers of the shipped measurement table
METHODS = (
    "oaken",
    "nqkv",
    "nqkv:block=64",
    "sinkq",
    "sinkq:group=32",
    "kivi",
    "kivi:bits=4",
    "int8",
    "int4",
    "fp8",
    "qserve",
    "atom",
    "tender",
    "kvquant",
    "fp8:format=e5m2",
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "nvfp4",
    "nvfp4_4over6",
    "mxfp4",
    "mxfp8",
    "fp4_mx_block16",
    "q8_0",
    "q5_0",
    "q5_1",
    "q4_0",
    "q4_1",
    "iq4_nl",
    "mlx",
    "mlx:bits=4",
    "q8_0:rotate=off",
    "q4_0:rotate=off",
)


#: layers of the 30, over which the error of the attention output is that over all, within 10 % for each quantizer
#: (1,024 tokens of the prose)
LAYERS = (1, 11, 13, 24, 25)
#: tokens from the start of the text, and how many of the last have queries
N_TOKENS, N_QUERIES = 384, 16
DUMP, CALIBRATION, THRESHOLDS = "smollm2.npz", "smollm2.calibration.npz", "smollm2.thresholds.toml"


def cut(source: str, note: str, *, has_queries: bool) -> dict[str, np.ndarray]:
    """The arrays of a smaller dump: LAYERS, N_TOKENS."""
    found: dict[str, np.ndarray] = {}
    with open_dump(source) as whole:
        layers = kernels.layers(whole)
        for i, layer in enumerate(LAYERS):
            for side in ("key", "value"):
                found[f"layer{i}.{side}"] = whole.read(layers[layer].tensors[side].name)[:, :, :N_TOKENS]
            query = layers[layer].query
            if has_queries:
                assert query is not None
                n_after = layers[layer].tensors["key"].shape[2] - N_TOKENS  # queries are of the last tokens
                queries = whole.read(query.name)
                last = queries.shape[2] - n_after
                found[f"layer{i}.query"] = queries[:, :, last - N_QUERIES : last]
    meta = {"model": "SmolLM2-135M-Instruct", "rope": "after", "rope_theta": "100000", "note": note}
    return {**found, "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}


def write(prose: str, code: str, folder: str) -> None:
    """Write what ships: the sample, the one for calibration, and what is measured."""
    where = f"layers {', '.join(map(str, LAYERS))} of 30; weights of 4 bits (GGUF Q4_1)"
    measured = cut(prose, f"{where}; GNU GPL version 3", has_queries=True)
    calibration = cut(code, f"{where}; difflib.py", has_queries=False)
    for name, arrays in ((DUMP, measured), (CALIBRATION, calibration)):
        np.savez_compressed(Path(folder) / name, allow_pickle=False, **arrays)
    measure(folder)


def measure(folder: str) -> None:
    """Write Oaken's thresholds from the calibration sample, and the table of what quantizers make of the other."""
    thresholds = Path(folder) / THRESHOLDS

    def silent(items: Any, **_: Any) -> Any:
        return nullcontext(items)

    with tempfile.TemporaryDirectory() as scratch:
        dump.profile_to([str(Path(folder) / CALIBRATION)], str(thresholds), "4/90/6", "SmolLM2-135M", 2**30, silent)
        asked = MeasureOptions(str(thresholds), str(N_TOKENS))
        found = run.run(str(Path(folder) / DUMP), METHODS, f"{scratch}/measured", asked, silent).file
    named = found.model_copy(update={"data": found.data.model_copy(update={"name": SAMPLE})})
    (Path(folder) / measurements.SHIPPED).write_bytes(measurements.to_json(_rounded(named)))


def _rounded(found: Any) -> Any:
    """Sums over attention with nine digits: the last ones of a matrix product differ between processors."""

    def tensor(one: Any) -> Any:
        sums = {name: float(f"{value:.9g}") for name, value in one.output.model_dump().items()}
        return one.model_copy(update={"output": one.output.model_copy(update=sums)})

    methods = [m.model_copy(update={"tensors": [tensor(one) for one in m.tensors]}) for m in found.methods]
    return found.model_copy(update={"methods": methods})


if __name__ == "__main__":
    import sys

    write(*sys.argv[1:])
