"""SinkQ's own work: by hand, and against a loop over steps."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import naive
from dse import quantizers
from dse.model import kv_layout as plan
from factories import PLANS, at, build, device, layer, model, point_of


def test_llama2_7b_by_hand():
    """64 in, 384 out, G 128, R 32: groups are packed at 160, 288 and 416 tokens; 30 layers keep 3 sinks."""
    made = point_of(build("llama2-7b", "sinkq"), 64, 384).made
    scores_s, choice_s = (2 * n_bytes / 384 / 1e12 for n_bytes in (made.score_bytes, made.choice_bytes))
    steps = 448 - 160 + 1  # that read a pool
    assert scores_s == pytest.approx(2 * steps * 30 * 2 * 6 * 32 * 3 / 384 / 1e12, rel=1e-12)
    # 3 groups of 128 tokens: keys read twice, values once, 2 bytes an element
    assert choice_s == pytest.approx(2 * 3 * 128 * 30 * 3 * 2 * 4096 / 384 / 1e12, rel=1e-12)
    dear, free = (
        at(device(bandwidth=1e12), build("llama2-7b", name), batch=2, input_tokens=64, output_tokens=384)
        for name in ("sinkq", "sinkq:sinks=0")
    )
    paid = [dear[name] - free[name] for name in ("dequantize_s", "quantize_s")]
    assert paid == pytest.approx([scores_s, choice_s], rel=1e-9)


@given(PLANS, st.integers(1, 100), st.integers(1, 120))
def test_work_is_the_loop_over_steps(kv, n_in, n_out):
    made = point_of(kv, n_in, n_out).made
    scores = chosen = Fraction(0)
    for g in kv.groups:
        if g.quantizer.family.name != "sinkq" or g.layout.shape.shallow:
            continue
        values = dict(g.quantizer.values)
        rows, reads = values["sinks"] + values["evicted"], 2 if g.which == "key" else 1
        fits = g.window_tokens >= g.step_tokens + g.residual_tokens  # else nothing is ever packed
        for s in range(n_in + 1, n_in + n_out + 1):
            now, before = (naive.packed_tokens(n, g.step_tokens, g.residual_tokens) * fits for n in (s, s - 1))
            scores += g.n_read_layers * (now > 0) * 6 * kv.model.n_q_heads * rows
            chosen += g.n_stored_layers * (now - before) * reads * 2 * g.n_elements
    assert [made.score_bytes, made.choice_bytes] == pytest.approx([float(scores), float(chosen)], rel=1e-12)


def test_no_pool_no_work():
    for name in ("kivi", "sinkq:sinks=0", "fp16", "oaken"):
        spec = quantizers.parse(name)
        kv = plan.build(model(layer(n_layers=5)), spec, spec)
        made = point_of(kv, 1024, 1024).made
        assert (made.score_bytes, made.choice_bytes) == (0.0, 0.0)
