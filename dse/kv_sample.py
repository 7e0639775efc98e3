"""A synthetic KV cache with the features that quantizers live from: for tests, benchmarks and a first try.

Synthetic, not taken from a language model: every number below is assumed, in the range that papers describe.
"""

from typing import Any, NamedTuple

import numpy as np


class LayerSample(NamedTuple):
    """Keys and values of one layer, FP16, [1, heads, tokens, head_dim]."""

    key: np.ndarray
    value: np.ndarray


#: shape of the sample that ships as data/kv_sample.npz
SHIPPED = {"n_layers": 4, "n_heads": 2, "n_tokens": 320, "head_dim": 128, "seed": 2025}
#: another sample, from which the shipped Oaken thresholds were profiled
CALIBRATION_SEED = 7


def bell(bits: np.random.PCG64, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of mean 0 and variance 1, bell-shaped (four uniform 16-bit numbers summed): the same everywhere.

    numpy keeps a bit generator's stream over its versions, but not the order in which it draws normal numbers.
    """
    n = int(np.prod(shape))
    raw = np.asarray(bits.random_raw(n)).view(np.uint16).reshape(n, 4)
    total = raw.astype(np.float64).sum(axis=1)  # four exact integers
    return ((total - 4 * 32767.5) / np.sqrt(4 * (2.0**32 - 1) / 12)).reshape(shape)


def synthetic(n_layers: int, n_heads: int, n_tokens: int, head_dim: int, seed: int) -> list[LayerSample]:
    """Keys and values of `n_layers` layers.

    Keys have outlier channels (one in 32: an offset of several deviations, same for all tokens, as KIVI and KVQuant
    report), values have none; both have heavier tails than a bell. Tokens 0, 1 and a few later ones are attention
    sinks: keys of about a tenth of the norm, values of about a third (OTT, SinkQ 3.1). Each layer has a range of its
    own (Oaken, Figure 6).
    """
    layers = []
    for layer in range(n_layers):
        bits = np.random.PCG64(seed * 1000 + layer)
        key, value, tails = (bell(bits, (n_heads, n_tokens, head_dim)) for _ in range(3))
        channels = bell(bits, (3, n_heads, 1, head_dim))
        picks = np.asarray(bits.random_raw(n_heads * 8)).reshape(n_heads, 8)
        # tails: one element in about eight is up to three times as large
        stretch = 1.0 + np.maximum(np.abs(tails) - 1.5, 0.0) * 2.0
        offset = np.zeros((n_heads, 1, head_dim))
        for head in range(n_heads):
            for pick in picks[head, : max(head_dim // 32, 1)]:
                offset[head, 0, int(pick) % head_dim] = 6.0 + channels[0, head, 0, int(pick) % head_dim]
        key = (key * (1.0 + 0.3 * np.abs(channels[1])) * stretch + offset) * (1.0 + 0.25 * layer)
        value = value * (0.5 + 0.2 * np.abs(channels[2])) * stretch * (0.4 + 0.3 * layer)
        for head in range(n_heads):
            sinks = sorted({t % n_tokens for t in (0, 1, *map(int, picks[head, 4:6]))} if n_tokens else ())
            key[head, sinks] *= 0.1
            value[head, sinks] *= 0.3
        layers.append(LayerSample(key[None].astype(np.float16), value[None].astype(np.float16)))
    return layers


def arrays(layers: list[LayerSample]) -> dict[str, np.ndarray]:
    """The sample as a dump holds it: `layer0.key`, `layer0.value`, ..."""
    return {f"layer{i}.{side}": getattr(layer, side) for i, layer in enumerate(layers) for side in ("key", "value")}


#: quantizers of the shipped measurement table
METHODS = (
    "oaken", "nqkv", "nqkv:block=64", "sinkq", "sinkq:group=32", "kivi", "kivi:bits=4", "int8", "int4", "fp8", "qserve",
    "atom", "tender", "kvquant",
)  # fmt: skip
NAME = "kv_sample"


def write(folder: str) -> None:
    """Write what ships: the sample, Oaken's thresholds from the calibration sample, the measurement table."""
    import tempfile
    from contextlib import nullcontext
    from pathlib import Path

    from dse import measure_dump, measurements

    def silent(items: Any, **_: Any) -> Any:
        return nullcontext(items)

    sample, thresholds = Path(folder) / f"{NAME}.npz", Path(folder) / f"{NAME}.thresholds.toml"
    np.savez(sample, **arrays(synthetic(**SHIPPED)))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as scratch:
        calibration = Path(scratch) / "calibration.npz"
        np.savez(calibration, **arrays(synthetic(**{**SHIPPED, "seed": CALIBRATION_SEED})))  # type: ignore[arg-type]
        measure_dump.profile_to([str(calibration)], str(thresholds), "4/90/6", "synthetic", 2**30, silent)
    found = measure_dump.run(str(sample), METHODS, str(thresholds), 1, "raise", None, True, 2**30, silent)
    (Path(folder) / measurements.SHIPPED).write_bytes(measurements.to_json(found))


if __name__ == "__main__":
    import sys

    write(sys.argv[1])
