"""The fit of code that writes FP16 copies of the cache: found again here from NQKV's published step times.

NQKV Table 4: throughputs of NQKV and of SmoothQuant with an INT8 cache on one A100, 11 rows where both ran. Batch over
throughput is the time of a step; the difference of the two is what dequantization costs, since the framework's own
time (6 to 40 times the kernels') is in both.
"""

from dataclasses import replace

import numpy as np
import pytest

from dse.calibrate import solve as calibrate_solve
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate.claims.designs import build
from dse.validate.claims.nqkv import NQKV, SMOOTHQUANT
from dse.validate.claims.published import NQKV_OUTPUT_TOKENS, NQKV_TABLE_4

ROWS = [(*key, sq, nq) for key, ((_, sq, nq), _) in NQKV_TABLE_4.items() if sq is not None]
#: OPT-6.7B and OPT-30B: layers and channels (config.json of the models)
SHAPES = {"opt-6.7b": (32, 4096), "opt-30b": (48, 7168)}
PRINTED_S = np.array([batch / nq - batch / sq for _, batch, _, sq, nq in ROWS])
SPACE = calibrate_solve.Space(
    ("launch_us", "passes"), np.array([50.0, 2.0]), np.array([0.0, 1.0]), np.array([1e4, 100.0])
)


def rest_s(stack):
    """All of the difference but the copies: attention reads 4 bits instead of 8, new tokens are packed."""
    device = catalog.device("a100-80gb")
    # no release runs SmoothQuant's INT8 cache in this framework: unpacked at the device's (assumed) rate
    per_cycle = device.rate("fused").si / device.n_cores.si / device.core_clock.si
    as_assumed = {NQKV: None, SMOOTHQUANT: f"generic:elements_per_cycle={per_cycle!r}"}
    bare = device.stacks[stack].model_copy(update={"materialised": None})
    device = device.model_copy(update={"stacks": {stack: bare}})
    found = []
    for model, batch, n_in, _, _ in ROWS:
        work = Workload(
            batch, n_in, NQKV_OUTPUT_TOKENS, weights_bits=8, model_kind="calibrated", stack=stack, admission="paged"
        )
        nqkv, smoothquant = (
            evaluate(Point(device, build(model, name), replace(work, implementation=run_by)))
            for name, run_by in as_assumed.items()
        )
        assert nqkv["running_batch"] == smoothquant["running_batch"] == batch
        found.append(nqkv["decode_step_s"] - nqkv["dequantize_s"] - smoothquant["decode_step_s"])
    return np.array(found)


def model_s(stack):
    """Predicted difference of step times as a function of (launch in us, inverse of the share of the bandwidth)."""
    layers = np.array([SHAPES[model][0] for model, *_ in ROWS])
    channels = np.array([SHAPES[model][1] for model, *_ in ROWS])
    context = np.array([n_in + (NQKV_OUTPUT_TOKENS + 1) / 2 for _, _, n_in, _, _ in ROWS])
    elements = 2 * layers * channels * context * np.array([batch for _, batch, *_ in ROWS])
    rest = rest_s(stack)
    return lambda point: rest + 2 * layers * point[0] * 1e-6 + 4 * elements * point[1] / 2.039e12


@pytest.mark.parametrize("stack", ["vllm", "sglang"])
def test_the_shipped_fit_is_what_the_printed_differences_give(stack):
    predict = model_s(stack)
    weights = np.ones(len(ROWS))

    def fitted(keep):
        start = np.array([50.0, 2.0])
        point, _ = calibrate_solve.solve(
            lambda p: predict(p)[keep], PRINTED_S[keep], weights[keep], SPACE, start, [0, 1]
        )
        return point

    everything = np.arange(len(ROWS))
    point = fitted(everything)
    alone = [predict(fitted(np.delete(everything, i)))[i] / PRINTED_S[i] - 1 for i in everything]
    shipped = catalog.device("a100-80gb").stacks[stack].materialised
    print(stack, point, 1 / point[1], np.mean(np.abs(alone)), np.median(np.abs(alone)), predict(point) / PRINTED_S)
    assert shipped is not None
    assert point[0] == pytest.approx(shipped.launch.si * 1e6, rel=1e-3)
    assert 1 / point[1] == pytest.approx(shipped.memory_frac.si, rel=1e-3)
    assert np.mean(np.abs(alone)) == pytest.approx(shipped.held_out_error, rel=1e-2)
    assert shipped.n_points == len(ROWS) == 11
