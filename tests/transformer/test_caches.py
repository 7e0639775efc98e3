"""Caches of a model's layers: each side is what its method makes of it, plans by layer, layers kept in 16 bits."""

import numpy as np
import pytest

import kernels_ref
from dse import quantizers
from dse.core.errors import InputError
from dse.quantizers.methods import per_token_head, turboquant
from dse.transformer import caches as kv
from dse.transformer.checkpoint import Rotation
from dse.transformer.forward import rotate
from factories import plan_file

# sinks are kept from the third layer on: chosen by keys after RoPE, though KVQuant's are packed before it
PAIRS = [
    ("int8", "nqkv:block=16"),
    ("sinkq:bits=4,group=16,residual=8", "kvquant"),
    ("kvquant", "sinkq:bits=4,group=16,residual=8"),
]
MORE = [("tender", "fp16"), ("oaken", "kivi:bits=4,group=16,residual=16"), ("kivi:bits=4,group=16,residual=16", "bf16")]


class Toy:
    """A model of three layers with 2 KV heads of 16 channels."""

    name, n_layers = "toy", 3

    def rotation(self, layer):
        return Rotation(10000.0 ** (-np.arange(8) / 8), 10000.0, True)


def drawn(n_batch, n_tokens):
    """Keys before and after RoPE and values of every layer, FP16."""
    rng = np.random.default_rng(5)
    before, values = rng.normal(size=(2, 3, n_batch, 2, n_tokens, 16)).astype(np.float32)
    before[..., 3] += 4  # a channel that sticks out
    keys = rotate(before, *Toy().rotation(0).turns(0, n_tokens))
    return kv.Calibration(*(tuple(x.astype(np.float16)) for x in (before, keys, values)))


KNOWN = drawn(2, 80)


def filled(text, n_tokens=64):
    spec = quantizers.parse(text) if isinstance(text, str) else text
    found = kv.caches(spec, Toy(), KNOWN)
    for layer, cache in enumerate(found):
        key = KNOWN.of(layer, "key", cache.before_rope)
        cache.append(key[:, :, :n_tokens].astype(np.float32), KNOWN.value[layer][:, :, :n_tokens].astype(np.float32))
    return found


def plan(folder, pairs):
    return quantizers.parse("plan:" + plan_file(folder, pairs))


@pytest.mark.parametrize("pairs", [PAIRS, MORE])
def test_each_side_is_what_its_method_gives_alone(tmp_path, pairs):
    mixed = filled(plan(tmp_path, pairs))
    for layer, names in enumerate(pairs):
        for side, name in enumerate(names):
            alone = filled(name)[layer]
            # keys before RoPE are turned from FP16, and come to the other side's cache rounded once more
            same = np.array_equal if names[0] != "kvquant" or side == 0 else lambda a, b: np.allclose(a, b, atol=0.3)
            assert same(mixed[layer].seen()[side], alone.seen()[side])
        assert mixed[layer].before_rope == (names[0] == "kvquant")


def test_a_plan_of_one_method_is_that_method(tmp_path):
    name = "kivi:bits=2,group=16,residual=16"
    found, alone = filled(plan(tmp_path, [(name, name)] * 3)), filled(name)
    assert kv.stored_bits(found) == kv.stored_bits(alone)
    for one, other in zip(found, alone, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one.seen(), other.seen(), strict=True))


def test_bits_are_those_of_the_sides(tmp_path):
    # 64 tokens, 2 heads of 16 channels: INT8 8 + 32 / 32 = 9 bits; NF4 in blocks of 16 4 + 16 / 16 = 5;
    # KIVI's 2-bit keys, all packed, 2 + 2 * 16 / 16 = 4; FP16 16
    pairs = [("int8", "nqkv:block=16"), ("kivi:bits=2,group=16,residual=16", "fp16"), ("fp16", "int8")]
    assert [cache.stored_bits for cache in filled(plan(tmp_path, pairs))] == [(9 + 5) / 2, (4 + 16) / 2, (16 + 9) / 2]


def test_bits_of_a_residual_window():
    # 2-bit codes and 2 * 16 / 16 bits of scale and minimum; all 64 keys packed; 48 values packed, 16 in FP16
    assert kv.stored_bits(filled("kivi:bits=2,group=16,residual=16")) == pytest.approx(
        (4 + (48 * 4 + 16 * 16) / 64) / 2
    )


def test_sinks_beside_another_method_keep_their_positions(tmp_path):
    name = "sinkq:bits=4,group=16,residual=8"
    found = filled(plan(tmp_path, [("fp16", "fp16"), ("fp16", "fp16"), ("int8", name)]))[2]
    alone = filled(name)[2].cache
    assert isinstance(alone, kernels_ref.SinkQCache)
    assert alone.buffers["key_positions"].size
    n_bytes = alone.packed("value")[0].stored_bytes + alone.buffers["key_positions"].nbytes
    assert found.stored_bits == (9 + 8 * n_bytes / (2 * 64 * 32)) / 2


def test_a_plan_for_another_model_is_one_line(tmp_path):
    with pytest.raises(InputError, match="has 2 layers, toy has 3"):
        filled(plan(tmp_path, [("int8", "fp16")] * 2))


@pytest.mark.parametrize("name", [family.name for family in (*per_token_head.FAMILIES, *turboquant.FAMILIES)])
def test_layers_in_16_bits_and_the_others(name):
    cache, exact = filled(f"{name}:skip=0", 40), filled("fp16", 40)
    assert all(np.array_equal(*pair) for pair in zip(cache[0].seen(), exact[0].seen(), strict=True))
    spec = quantizers.skipping.bare(quantizers.parse(name))
    shapes = [quantizers.TensorShape(side, 2, 16) for side in ("key", "value")]
    bits = sum(spec.layout(shape).packed_bits_per_token / shape.n_elements for shape in shapes) / 2
    assert cache[0].stored_bits == 16
    assert cache[1].stored_bits == float(bits)


def test_turboquant_keeps_all_layers_of_a_small_model():
    assert kv.stored_bits(filled("turboquant_3bit_nc", 40)) == 16
    assert kv.stored_bits(filled("turboquant_3bit_nc:skip=none", 40)) < 16


def test_a_cache_is_what_the_method_gives_at_once():
    cache, *_ = filled("turboquant_4bit_nc:skip=-1", 40)
    exact, *_ = filled("fp16", 40)
    for side, seen, x in zip(("key", "value"), cache.seen(), exact.seen(), strict=True):
        want = kernels_ref.TurboQuant("4bit_nc", side).quantize(x).dequantize()
        assert np.array_equal(seen, want)


def test_latent_slots_have_no_cache_of_keys_and_values():
    with pytest.raises(InputError, match="'fp8_ds_mla': has no cache"):
        filled("fp8_ds_mla")
