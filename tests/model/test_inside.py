"""No estimate lies outside its own interval, and no gain outside its own: any device, stack, model and format."""

from hypothesis import given, settings
from hypothesis import strategies as st

import factories
from dse.core.errors import DseError
from dse.model import uncertainty
from dse.model.engine import evaluate
from dse.specs import catalog

DEVICES = sorted(catalog.device_files())
MODELS = ("llama2-7b", "llama3.1-8b", "llama3.1-70b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "qwen3-30b-a3b")
QUANTIZERS = ("fp16", "fp8", "nvfp4", "kivi", "oaken", "nqkv", "int4_per_token_head", "turboquant_4bit_nc", "qserve")
WORK = st.fixed_dictionaries(
    {
        "batch": st.sampled_from([1, 8, 64, 256]),
        "input_tokens": st.sampled_from([16, 1024, 16_384]),
        "output_tokens": st.sampled_from([16, 512]),
        "tp": st.sampled_from([1, 2, 8]),
        "stack": st.sampled_from([None, None, "vllm@0.19.0", "vllm@kernels", "sglang", "trtllm"]),
        "model_kind": st.sampled_from(["auto", "auto", "ideal"]),
        "weights": st.sampled_from([None, "fp8"]),
    }
)


def results(device, model, quantizer, work):
    """Results of a design that fits; None where it does not, or is refused."""
    try:
        found = evaluate(factories.point(device, model, quantizer, **work))
    except DseError:
        return None
    return found if found["feasible"] else None


@settings(max_examples=150)
@given(st.sampled_from(DEVICES), st.sampled_from(MODELS), st.sampled_from(QUANTIZERS), WORK)
def test_every_estimate_is_inside_its_interval(device, model, quantizer, work):
    found = results(device, model, quantizer, work)
    if found is None:
        return
    for name, interval in uncertainty.of_results(found, None).items():
        assert interval.low <= 1 + 1e-9, name
        assert interval.high >= 1 - 1e-9, name
    plain = results(device, model, "fp16", work)
    for column in ("throughput_tokens_per_s", "tpot_s") if plain else ():
        gain = uncertainty.gain(found, plain, column)
        assert gain.low <= gain.ratio <= gain.high, column
