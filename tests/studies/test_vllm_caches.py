"""vLLM's formats through the language model's streaming caches, and layers kept in 16 bits."""

import numpy as np
import pytest

import kernels_ref
from dse import quantizers
from dse.core.errors import InputError
from dse.quantizers.methods import per_token_head, turboquant
from dse.transformer import caches as kv
from studies import perplexity


def filled(text, model, known, tokens):
    found = kv.caches(quantizers.parse(text), model, known)
    perplexity.Prompted(model, tokens).fill(found)
    return found


@pytest.mark.parametrize("name", [family.name for family in (*per_token_head.FAMILIES, *turboquant.FAMILIES)])
def test_layers_in_16_bits_and_the_others(name, model, known, tokens):
    cache = filled(f"{name}:skip=0", model, known, tokens[:, :40])
    exact = filled("fp16", model, known, tokens[:, :40])
    assert all(np.array_equal(*pair) for pair in zip(cache[0].seen(), exact[0].seen(), strict=True))
    spec, key = quantizers.skipping.bare(quantizers.parse(name)), exact[1].seen()[0]
    shapes = [quantizers.TensorShape(side, key.shape[1], key.shape[3]) for side in ("key", "value")]
    bits = sum(spec.layout(shape).packed_bits_per_token / shape.n_elements for shape in shapes) / 2
    assert cache[0].stored_bits == 16
    assert cache[1].stored_bits == float(bits)


def test_turboquant_keeps_all_layers_of_a_small_model(model, known, tokens):
    assert len(model.layers) <= 4
    assert kv.stored_bits(filled("turboquant_3bit_nc", model, known, tokens[:, :40])) == 16
    assert kv.stored_bits(filled("turboquant_3bit_nc:skip=none", model, known, tokens[:, :40])) < 16


def test_a_cache_is_what_the_method_gives_at_once(model, known, tokens):
    cache, *_ = filled("turboquant_4bit_nc:skip=-1", model, known, tokens[:, :40])
    exact, *_ = filled("fp16", model, known, tokens[:, :40])
    for side, seen, x in zip(("key", "value"), cache.seen(), exact.seen(), strict=True):
        want = kernels_ref.TurboQuant("4bit_nc", side).quantize(x).dequantize()
        assert np.array_equal(seen, want)


def test_latent_slots_have_no_cache_of_keys_and_values(model, known):
    with pytest.raises(InputError, match="'fp8_ds_mla': has no cache"):
        kv.caches(quantizers.parse("fp8_ds_mla"), model, known)
