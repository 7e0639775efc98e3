"""How fast sweeps run: to Parquet, and to a front.

    python benchmarks/sweep.py [--threads 2] [--rounds 5] [--only Parquet,front,...]

Goals on 2 cores: 10 million points a second to Parquet, 30 million to a front, also to one of calibrated servers (by
TPOT). Beside them, in the same run: numpy on the same formulas, and how fast the memory is written. Compiled code is
warm; runs take turns; the best of all rounds counts, as machines are shared.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dse
from dse.specs import catalog
from dse.sweep import spec as sweep_spec

#: 3 models x 64 prompts x 2 outputs x 40 bandwidths x 4096 batches = 63 million points. Most do not fit at once: with
#: reserved memory waves of two sizes are evaluated, with paged memory one.
AXES: dict[str, Any] = {
    "device": "h100",
    "model_kind": "ideal",
    "model": ["llama2-7b", "llama2-13b", "llama3-8b"],
    "input_tokens": {"from": 128, "to": 8192, "step": 128},
    "output_tokens": [128, 1024],
    "memory_bandwidth": {"from": "1 TB/s", "to": "8 TB/s", "count": 40},
}
MANY = {"from": 1, "to": 4096, "step": 1}
#: to Parquet, with the columns that sweeps keep by default: 16 million points
TO_DISK = {**AXES, "batch": {"from": 1, "to": 1021, "step": 1}}


def numpy_points(n_points: int) -> Callable[[], None]:
    """The same results of one combination for many batches that fit, by numpy into arrays that are reused."""
    device, model = catalog.device("h100"), catalog.model("llama2-7b")
    n = np.arange(1.0, n_points + 1.0) % 64 + 1
    active, bandwidth, peak = float(model.active_parameters), device.memory_bandwidth.si, device.peak_flops.si
    assert device.board_power is not None
    read_s, power, n_input, n_output, attention_1, flops = (
        2 * active / bandwidth,
        device.board_power.si,
        1024,
        128,
        1e-3,
        1e12,
    )
    out = np.empty((8, n_points))

    def run() -> None:
        waves = np.ceil(n / 64)
        np.ceil(n / waves, out=out[0])
        running = out[0]
        np.maximum(2 * active * running / peak, read_s, out=out[1])
        np.divide(running * attention_1, n_output, out=out[2])
        np.add(out[1], out[2], out=out[3])
        prompt = np.maximum(2 * active * (running * n_input) / peak, read_s)
        np.add(prompt, running * flops / peak, out=out[4])
        wave = n_output * out[3] + out[4]
        full = n - waves * (running - 1)
        np.add(full * wave, (waves - full) * wave, out=out[5])
        np.divide(n * n_output, out[5], out=out[6])
        np.divide(power, out[6], out=out[7])

    return run


def filled(buffer: NDArray[np.float64]) -> Callable[[], None]:
    """Writing a buffer, one value over and over."""
    return lambda: buffer.fill(1.0)


def main() -> None:
    """Points per second, and bytes per second of the memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    runs: dict[str, tuple[int, Callable[[], Any]]] = {}
    runs["numpy, fp16, one wave, 65,536 at a time"] = (2**16, numpy_points(2**16))
    runs["numpy, fp16, one wave, 4 million at a time"] = (2**22, numpy_points(2**22))
    runs["writing 8 columns of 65,536"] = (2**16, filled(np.zeros((8, 2**16))))
    runs["writing 8 columns of 4 million"] = (2**22, filled(np.zeros((8, 2**22))))
    folder = Path(tempfile.mkdtemp())
    to_disk = sweep_spec.from_dict({"axes": TO_DISK})

    def parquet() -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        dse.sweep(to_disk, folder / "out", threads=args.threads)

    to_front = sweep_spec.from_dict({"axes": {**AXES, "batch": MANY}})
    served = sweep_spec.from_dict({"axes": {**AXES, "model_kind": "calibrated", "batch": MANY}})

    def front(swept: sweep_spec.Sweep, step: str) -> Callable[[], None]:
        def run() -> None:
            shutil.rmtree(folder / "front", ignore_errors=True)
            dse.sweep(
                swept,
                folder / "front",
                threads=args.threads,
                keep="front",
                maximize=["throughput_tokens_per_s"],
                minimize=[step],
            )

        return run

    runs[f"Parquet, {args.threads} threads"] = (to_disk.n_points, parquet)
    runs[f"front, {args.threads} threads"] = (to_front.n_points, front(to_front, "decode_step_s"))
    runs[f"served front, calibrated, {args.threads} threads"] = (served.n_points, front(served, "tpot_s"))
    runs = {name: run for name, run in runs.items() if any(name.startswith(only) for only in args.only.split(","))}
    seconds = dict.fromkeys(runs, float("inf"))
    for _, function in runs.values():
        function()
    for _ in range(args.rounds):
        for name, (_, function) in runs.items():
            begin = time.perf_counter()
            function()
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    slow = max((n / seconds[name] for name, (n, _) in runs.items() if name.startswith("numpy")), default=float("nan"))
    for name, (n, _) in runs.items():
        rate = n / seconds[name]
        print(f"{name:<42}{n:>12,} points{rate / 1e6:9.1f} M points/s{rate / slow:8.1f} x numpy")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
