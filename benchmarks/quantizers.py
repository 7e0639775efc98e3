"""Speed of the quantizers in GB/s of FP16 input, beside a copy of memory and other people's code in the same run.

    python benchmarks/quantizers.py [--mib 256] [--rounds 7] [--threads 1,2] [--methods nf4,oaken]

Goals on 2 cores: NF4 quantise 5 GB/s; KIVI and per-token 4; Oaken paper mode 1; every dequantise 4; profiling of
thresholds 0.5. References: a copy, the same in plain numpy on a small part, and, where they are installed,
bitsandbytes (CPU) and torch. Warm: every function runs once before it is timed; functions take turns; the best of all
rounds counts, since the machine is shared.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import kernels_ref
from dse.measure import synthetic as kv_sample
from kernels_ref.nf4 import CODEBOOK

HEADS, HEAD_DIM = 32, 128
#: the part of the tensor that slow references work on
SMALL_TOKENS = 256


def tensor(mib: int) -> np.ndarray:
    """[tokens, channels] of FP16 with outlier channels: the synthetic sample's keys, repeated."""
    tokens = mib * 2**20 // (2 * HEADS * HEAD_DIM)
    key = kv_sample.synthetic(1, HEADS, 512, HEAD_DIM, 1)[0].key
    rows = key[0].transpose(1, 0, 2).reshape(512, HEADS * HEAD_DIM)
    return np.ascontiguousarray(np.tile(rows, (-(-tokens // 512), 1))[:tokens])


def numpy_nf4(x: np.ndarray) -> Any:
    """NF4 in blocks of 256, as one would write it in numpy."""
    blocks = x.reshape(-1, 256).astype(np.float32)
    absmax = np.abs(blocks).max(axis=1, keepdims=True)
    book = np.array(CODEBOOK, np.float32)
    return np.searchsorted((book[1:] + book[:-1]) / np.float32(2), blocks / absmax).astype(np.uint8)


def numpy_int8(x: np.ndarray) -> Any:
    """INT8 per token, as one would write it in numpy."""
    wide = x.astype(np.float32)
    return np.rint(wide * (127 / np.abs(wide).max(axis=1, keepdims=True))).astype(np.int8)


def numpy_kivi(x: np.ndarray) -> Any:
    """KIVI keys, 2 bits in groups of 32 tokens, as one would write it in numpy."""
    groups = x.reshape(-1, 32, x.shape[1])
    low = groups.min(axis=1, keepdims=True)
    scale = (groups.max(axis=1, keepdims=True) - low) / np.float16(3)
    return np.rint(np.clip((groups - low) / scale, 0, 3)).astype(np.uint8)


def references(small: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Other implementations, on the small part."""
    found: dict[str, Callable[[], Any]] = {
        "numpy NF4": lambda: numpy_nf4(small),
        "numpy INT8": lambda: numpy_int8(small),
        "numpy KIVI-2 keys": lambda: numpy_kivi(small),
    }
    if importlib.util.find_spec("torch"):
        import torch

        wide = torch.from_numpy(small.copy())
        groups = wide.reshape(-1, 32, small.shape[1])

        def torch_kivi() -> Any:
            low = groups.amin(1, keepdim=True)
            scale = (groups.amax(1, keepdim=True) - low) / 3
            return ((groups - low) / scale).clamp(0, 3).round().to(torch.uint8)

        found["torch KIVI-2 keys"] = torch_kivi
        if importlib.util.find_spec("bitsandbytes"):
            import bitsandbytes.functional as bnb

            flat = wide.reshape(-1)
            quantized, state = bnb.quantize_4bit(flat, blocksize=256, quant_type="nf4")
            found["bitsandbytes NF4"] = lambda: bnb.quantize_4bit(flat, blocksize=256, quant_type="nf4")
            found["bitsandbytes NF4, back"] = lambda: bnb.dequantize_4bit(quantized, state)
    return found


def methods(x: np.ndarray) -> dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]]:
    """Name -> (quantise, dequantise) on the whole tensor."""
    profiler = kernels_ref.Profiler()
    for side in ("key", "value"):
        profiler.add(0, side, x)
    oaken = kernels_ref.Oaken.of(profiler.thresholds(), 0, "key")
    heads = np.ascontiguousarray(x.reshape(1, x.shape[0], HEADS, HEAD_DIM).transpose(0, 2, 1, 3))  # KIVI's own layout
    found: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]] = {}

    def add(name: str, quantize: Callable[[], Any]) -> None:
        packed = quantize()
        found[name] = quantize, packed.dequantize

    add("NF4, block 256", lambda: kernels_ref.NF4(256).quantize(x))
    add("NF4, block 64", lambda: kernels_ref.NF4(64).quantize(x))
    for bits in (2, 4):
        kivi = kernels_ref.KIVI(bits, 32, 0)
        add(f"KIVI-{bits} keys", lambda kivi=kivi: kivi.quantize(heads, "key"))  # type: ignore[misc]
        add(f"KIVI-{bits} values", lambda kivi=kivi: kivi.quantize(heads, "value"))  # type: ignore[misc]
    add("INT8 per token", lambda: kernels_ref.PerTokenInteger(8).quantize(x))
    add("INT4 per token", lambda: kernels_ref.PerTokenInteger(4).quantize(x))
    add("INT8 per tensor", lambda: kernels_ref.PerTensorInteger(0.25, 8).quantize(x))
    add("FP8 E4M3", lambda: kernels_ref.FP8().quantize(x))
    add("QServe, per head", lambda: kernels_ref.QServe().quantize(x, HEADS))
    add("Atom", lambda: kernels_ref.Atom().quantize(x, HEADS))
    add("Oaken, paper mode", lambda: oaken.quantize(x))
    sinkq = kernels_ref.SinkQ()
    cache = sinkq.quantize(heads, heads)
    found["SinkQ, keys and values"] = (lambda: sinkq.quantize(heads, heads)), cache.seen
    add("KIVI-2 keys, token rows", lambda: kernels_ref.KIVI(2, 32, 0).quantize(x, "key", HEADS))

    def profile() -> None:
        kernels_ref.Profiler().add(0, "key", x)

    found["Oaken thresholds"] = profile, None
    return found


def best(function: Callable[[], Any], rounds: int) -> float:
    """Shortest of `rounds` runs in seconds, after one that is not counted."""
    function()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> None:
    """Print GB/s of every method, and its share of what a copy reaches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--methods", default="", help="names that contain one of these words")
    options = parser.parse_args()
    x = tensor(options.mib)
    small = x[:SMALL_TOKENS]
    words = [word.lower() for word in options.methods.split(",") if word]
    into = np.empty_like(x)
    print(f"{x.nbytes / 2**20:.0f} MiB of FP16, {x.shape[0]} tokens of {HEADS} heads of {HEAD_DIM}")
    for n_threads in map(int, options.threads.split(",")):
        numba.set_num_threads(n_threads)
        copy = x.nbytes / best(lambda: np.copyto(into, x), options.rounds) / 1e9
        print(
            f"\n{n_threads} thread{'s' if n_threads > 1 else ''}; a copy of memory (numpy, one thread): {copy:.1f} GB/s"
        )
        print(f"{'':<26}{'quantise':>10}{'of copy':>9}{'back':>10}{'of copy':>9}")
        for name, (forth, back) in methods(x).items():
            if words and not any(word in name.lower() for word in words):
                continue
            n_bytes = x.nbytes * (2 if "keys and values" in name else 1)
            rates = [n_bytes / best(run, options.rounds) / 1e9 if run else None for run in (forth, back)]
            cells = "".join(f"{rate:>10.2f}{rate / copy:>9.2f}" if rate else f"{'-':>10}{'-':>9}" for rate in rates)
            print(f"{name:<26}{cells}")
    print(f"\nreferences, on {small.nbytes / 2**20:.0f} MiB")
    for name, run in references(small).items():
        print(f"{name:<26}{small.nbytes / best(run, 3) / 1e9:>10.3f}")


if __name__ == "__main__":
    main()
