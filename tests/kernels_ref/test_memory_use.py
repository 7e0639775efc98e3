"""No method takes more memory than its input, its output and 64 MiB."""

import tracemalloc

import numpy as np
import pytest

from kernels_ref import FP8, KIVI, NF4, Atom, Oaken, PerTokenInteger, Profiler, QServe, SinkQ

ROWS, HEADS, HEAD_DIM = 12_288, 32, 128  # 96 MiB
ALLOWED = 64 * 2**20


@pytest.fixture(scope="module")
def x():
    part = np.random.default_rng(0).standard_normal((512, HEADS * HEAD_DIM)).astype(np.float16)
    return np.tile(part, (ROWS // 512, 1))


def extra(run):
    """Bytes beyond the result at the peak of `run`."""
    tracemalloc.start()
    try:
        found = run()
        now, peak = tracemalloc.get_traced_memory()
        return found, peak - now
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "method",
    [NF4(), NF4(64), FP8(), PerTokenInteger(8), PerTokenInteger(4), Atom(), QServe(), KIVI(2), KIVI(4, 128, 128)],
    ids=str,
)
@pytest.mark.parametrize("layout", ["flat", "heads"])
def test_quantize_and_back(method, layout, x):
    given = x if layout == "flat" else x.reshape(1, ROWS, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
    packed, more = extra(lambda: method.quantize(given, n_heads=HEADS))
    assert more <= ALLOWED
    _, more = extra(packed.dequantize)
    assert more <= ALLOWED


def test_oaken_and_its_profile(x):
    profiler = Profiler()
    _, more = extra(lambda: [profiler.add(0, side, x) for side in ("key", "value")])
    assert more <= ALLOWED
    packed, more = extra(lambda: Oaken.of(profiler.thresholds(), 0, "key").quantize(x))
    assert more <= ALLOWED
    _, more = extra(packed.dequantize)
    assert more <= ALLOWED


def test_sinkq(x):
    cache, more = extra(lambda: SinkQ().quantize(x, x, HEADS))
    assert more <= ALLOWED
    _, more = extra(cache.seen)
    assert more <= ALLOWED
