"""SinkQ's work on sinks at each packing (its Appendix C): paid every G steps, and where it makes G = 32 slower."""

import pytest

from dse.model import engine
from dse.model.point import Point
from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate import claims
from dse.validate.claims.designs import build
from dse.validate.claims.sinkq import CALIBRATED, DEVICE, sinks_behind

SMALL, KIVI = "sinkq:bits=2,group=32,residual=32", "kivi:bits=2,group=32,residual=128"


def at(quantizer, batch=1, device=DEVICE, **fields):
    work = Workload(batch=batch, input_tokens=64, output_tokens=384, memory="paper", **{**CALIBRATED, **fields})
    return engine.evaluate(Point(catalog.device(device), build("llama2-7b", quantizer), work))


@pytest.mark.parametrize(("group", "n_packings"), [(32, 12), (128, 3)])
def test_it_is_paid_every_g_steps(group, n_packings):
    """Llama2-7B keeps sinks in 30 of 32 layers. From 64 to 448 tokens, 32 of them kept, groups of 32 are packed
    (448 - 32) / 32 = 13 times less the one of the prompt; of 128 three times, none in the prompt. 400 us more each are
    30 * 12 * 400 us / 384 steps = 375 us a step, 93.75 us with groups of 128, at any batch."""
    name = f"sinkq:bits=2,group={group},residual=32@sinkq-as-kivi"
    for batch in (1, 32):
        less, more = (at(f"{name}:sinks={us}", batch) for us in (100, 500))
        added = 30 * n_packings * 400e-6 / 384
        assert more["quantize_s"] - less["quantize_s"] == pytest.approx(added, rel=1e-9)
        assert more["decode_step_s"] - less["decode_step_s"] == pytest.approx(added, rel=1e-9)
        first = 30 * 400e-6 if group == 32 else 0.0
        assert more["prefill_alone_s"] - less["prefill_alone_s"] == pytest.approx(first, abs=1e-12)


def test_the_value_from_which_it_is_slower_than_kivi_is_printed():
    kivi = {batch: at(KIVI, batch)["throughput_tokens_per_s"] for batch in (1, 32)}
    for batch, other in kivi.items():
        limit_us = 1e6 * sinks_behind(SMALL, KIVI, batch)
        below, above = (
            at(f"{SMALL}@sinkq-as-kivi:sinks={share * limit_us!r}", batch)["throughput_tokens_per_s"]
            for share in (0.999, 1.001)
        )
        assert above < other < below
        assert f"{limit_us:,.0f} us at batch {batch}" in claims.evaluate("sinkq-f3-g32-kivi").ours


def test_chips_that_start_no_kernels_and_layers_without_sinks_have_none():
    fields = {"model_kind": "ideal", "stack": None}
    less, more = (at(f"{SMALL}@sinkq-as-kivi:sinks={us}", device="oaken-hbm", **fields) for us in (5, 3000))
    assert less["quantize_s"] == more["quantize_s"]
    none = [at(f"{SMALL},sinks=0@sinkq-as-kivi:sinks={us}")["quantize_s"] for us in (5, 3000)]
    assert none[0] == none[1]
