"""Makes the synthetic sample that ships and what is measured on it: `python -m scripts.ship_sample FOLDER`."""

from pathlib import Path
from typing import Any

import numpy as np

from dse.measure import dump, run
from dse.measure.synthetic import CALIBRATION_SEED, NAME, SHIPPED, arrays, synthetic
from dse.specs import measurements

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
)


def write(folder: str) -> None:
    """Write what ships: the sample, Oaken's thresholds from the calibration sample, the measurement table."""
    import tempfile
    from contextlib import nullcontext

    def silent(items: Any, **_: Any) -> Any:
        return nullcontext(items)

    sample, thresholds = Path(folder) / f"{NAME}.npz", Path(folder) / f"{NAME}.thresholds.toml"
    np.savez(sample, **arrays(synthetic(**SHIPPED)))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as scratch:
        calibration = Path(scratch) / "calibration.npz"
        np.savez(calibration, **arrays(synthetic(**{**SHIPPED, "seed": CALIBRATION_SEED})))  # type: ignore[arg-type]
        dump.profile_to([str(calibration)], str(thresholds), "4/90/6", "synthetic", 2**30, silent)
        whole = str(SHIPPED["n_tokens"])
        asked = run.MeasureOptions(str(thresholds), whole, rope="none", synthetic=True)  # queries are drawn
        found = run.run(str(sample), METHODS, f"{scratch}/measured", asked, silent).file
    (Path(folder) / measurements.SHIPPED).write_bytes(measurements.to_json(_rounded(found)))


def _rounded(found: Any) -> Any:
    """Sums over attention with nine digits: the last ones of a matrix product differ between processors."""

    def tensor(one: Any) -> Any:
        sums = {name: float(f"{value:.9g}") for name, value in one.output.model_dump().items()}
        return one.model_copy(update={"output": one.output.model_copy(update=sums)})

    methods = [m.model_copy(update={"tensors": [tensor(one) for one in m.tensors]}) for m in found.methods]
    return found.model_copy(update={"methods": methods})


if __name__ == "__main__":
    import sys

    write(sys.argv[1])
