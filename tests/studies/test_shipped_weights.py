"""The weights that ship, against torch's numbers for them, and their perplexity through an FP16 cache."""

import numpy as np
import pytest

from dse import quantizers
from dse.transformer import caches as kv
from dse.transformer.forward import nats
from studies import perplexity, text, weights
from studies.forward import forward

# BOS and the first 127 bytes of heapq.py through studies/training/model.py with the weights of studies/data, torch
# 2.13.0, CPU, float32 (float64 gives the same to 4e-6): logits at (position, token), nats of the byte after positions
AT, PLACES = ((0, 32), (40, 97), (126, 256), (100, 10)), (0, 20, 63, 126)
TORCH = {
    "mha": ((3.346744, -1.909648, -5.030180, -0.960578), (4.590239, 0.082656, 0.530875, 3.838737), 1.7655025),
    "gqa": ((3.429886, -0.035789, -5.306539, -0.227125), (4.589711, 0.053115, 0.309195, 3.278772), 1.7890074),
}


@pytest.fixture(scope="module", params=weights.SHIPPED)
def model(request):
    return weights.load(request.param)


def test_logits_are_torchs(model):
    tokens = weights.tokens_of(text.held_out(("heapq",))[:127].tobytes())[None]
    found = forward(model, tokens, [kv.FloatCache() for _ in model.layers])[0]
    at, per_place, mean = TORCH[model.name]
    # FP32 rounding of sums over 6 layers: torch's own float32 and float64 differ by 4e-6 here
    assert [float(found[i]) for i in AT] == pytest.approx(at, abs=5e-5)
    nat = nats(found[:-1], tokens[0, 1:])
    assert [float(nat[i]) for i in PLACES] == pytest.approx(per_place, abs=5e-5)
    assert float(nat.mean()) == pytest.approx(mean, abs=1e-5)


def test_perplexity_with_an_fp16_cache_is_the_one_without_a_cache_to_1e_3(model):
    tokens = perplexity.windows(text.held_out(("heapq", "textwrap")), 2, 96)
    bench = perplexity.PerplexityBench(model, perplexity.Windows(tokens, 48), kv.Calibration((), (), ()), 0)
    fp16 = quantizers.parse("fp16")
    score = bench.score(fp16, fp16)
    free = nats(forward(model, tokens[:, :-1], [kv.FloatCache() for _ in model.layers])[:, 47:], tokens[:, 48:])
    want = pytest.approx(np.exp(free.mean()), rel=1e-3)
    assert score.perplexity == want
    assert score.prompt_perplexity == want


def test_sizes_are_those_of_the_description(model):
    # mha: 66,048 of embedding and last norm, and 6 layers of 512 + 4 * 65,536 + 3 * 212,992 = 901,632: 5,475,840
    d, ff, layers, kv_width = 256, 832, 6, {"mha": 256, "gqa": 128}[model.name]
    own = layers * (2 * d + 2 * d * d + 2 * d * kv_width + 3 * d * ff)
    assert model.n_params == 257 * d + d + own
    assert (len(model.layers), model.head_dim, model.n_q_heads) == (6, 64, 4)
