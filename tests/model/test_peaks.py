"""Peaks of a chip whose kernels were measured: nothing is slower than they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core.errors import DseError
from dse.model.engine import evaluate
from dse.specs import catalog
from factories import point

DEVICES = sorted(name for name in catalog.device_files() if catalog.device(name).has_kernels)
MODELS = ("llama3.1-8b", "llama3.1-70b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b", "qwen3-0.6b", "llama4-scout")
QUANTIZERS = ("fp16", "fp8", "nvfp4", "kivi", "int4_per_token_head")


def results(kind, device, model, quantizer, **work):
    return evaluate(point(device, model, quantizer, admission="paged", memory="paper", model_kind=kind, **work))


@given(
    device=st.sampled_from(DEVICES),
    model=st.sampled_from(MODELS),
    quantizer=st.sampled_from(QUANTIZERS),
    work=st.fixed_dictionaries(
        {
            "batch": st.sampled_from((1, 8, 64, 256)),
            "input_tokens": st.sampled_from((16, 1024, 32_768)),
            "output_tokens": st.sampled_from((16, 512)),
            "tp": st.sampled_from((1, 2, 4, 8)),
            "weights": st.sampled_from(("bf16", "fp8", "w8a16")),
        }
    ),
)
def test_peaks_are_no_slower_than_kernels(device, model, quantizer, work):
    try:
        peak, measured = (results(kind, device, model, quantizer, **work) for kind in ("ideal", "calibrated"))
    except DseError:
        return  # a format or split that the model or device does not take
    if not peak["feasible"] or peak["running_batch"] != measured["running_batch"]:
        return
    for parts in (("collective_s",), ("attention_s", "quantize_s", "dequantize_s"), ("decode_step_s",), ("prefill_s",)):
        assert sum(peak[name] for name in parts) <= sum(measured[name] for name in parts) * (1 + 1e-9), parts


def test_formats_gain_what_their_bytes_save():
    """On a B200 keys and values of 32,769 tokens of 16 requests: bytes at 7.7 TB/s, whatever unpacks them."""
    for quantizer, n_bytes in (("fp16", 131_072), ("fp8", 65_536), ("nvfp4", 36_864)):
        found = results("ideal", "b200", "llama3.1-8b", quantizer, batch=16, input_tokens=32_768, output_tokens=1)
        assert found["attention_s"] == pytest.approx(16 * 32_769 * n_bytes / 7.7e12, rel=1e-3)
        assert found["quantize_s"] == found["dequantize_s"] == 0
