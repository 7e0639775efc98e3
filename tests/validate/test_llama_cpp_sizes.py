"""Sizes of llama.cpp's caches as its logs print them, to the last digit."""

import pytest

from dse import quantizers
from dse.specs import catalog, llama_cpp
from dse.validate import check_log, startup_log

_HEAD = """ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
llama_model_loader: - kv   2:                               general.name str              = {}
print_info: file type   = Q4_K - Medium
load_tensors: offloaded 99/99 layers to GPU
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
llama_context: n_seq_max     = {}
llama_context: n_ctx         = {}
"""
#: name, sequences, cells, buffers (MiB), the line with their types. Threads of ik_llama.cpp by number (8337e4c)
PRINTED = [
    # 242 and 389: without -mla, keys and values of each head
    ("DeepSeek R1 Bf16", 1, 512, [2440], "KV self size = 2440.00 MiB, K (f16): 1464.00 MiB, V (f16):  976.00 MiB"),
    (
        "DeepSeek R1 BF16",
        1,
        8192,
        [28060],
        "KV self size = 28060.00 MiB, K (q8_0): 12444.00 MiB, V (f16): 15616.00 MiB",
    ),
    # 258 and 485: the latent alone
    ("DeepSeek V3 0324", 1, 2048, [72.91], "KV self size = 72.91 MiB, c^KV (q8_0):   72.91 MiB, kv^T: not used"),
    ("DeepSeek R1", 1, 163_840, [10_980], "KV self size = 10980.00 MiB, c^KV (f16): 10980.00 MiB, kv^T: not used"),
    # 334: the fork keeps whole contexts of layers with windows
    ("Gemma 3 27b It", 1, 32_768, [15_872], "KV self size = 15872.00 MiB, K (f16): 7936.00 MiB, V (f16): 7936.00 MiB"),
    # 103
    ("Meta_Llama_3.1_8b_it", 1, 1024, [82], "KV self size = 82.00 MiB, K (iq4_nl):   18.00 MiB, V (f16):   64.00 MiB"),
    # eight sequences of 2,048 cells
    (
        "deepseek-coder-v2-lite",
        8,
        16_384,
        [4320],
        "llama_kv_cache: size = 4320.00 MiB ( 2048 cells, 27 layers, 8/8 seqs), "
        "K (f16): 2592.00 MiB, V (f16): 1728.00 MiB",
    ),
    # 78 layers of latents and 21 of 128 index channels
    (
        "GLM-5.2",
        1,
        524_288,
        [44_928, 2688],
        "llama_kv_cache: size = 44928.00 MiB (524288 cells, 78 layers), K (f16): 44928.00 MiB, V (f16):    0.00 MiB",
    ),
]


def _term(name, n_sequences, n_cells, buffers, line, more=""):
    lines = [f"llama_kv_cache:      CUDA0 KV buffer size = {size:.2f} MiB" for size in buffers]
    text = "\n".join([_HEAD.format(name, n_sequences, n_cells) + more, *lines, line])
    found = check_log.check(startup_log.read(text))
    return next(term for term in found.terms if term.name == check_log.POOL)


@pytest.mark.parametrize(("name", "n_sequences", "n_cells", "buffers", "line"), PRINTED)
def test_caches_are_as_large_as_printed(name, n_sequences, n_cells, buffers, line):
    term = _term(name, n_sequences, n_cells, buffers, line)
    assert term.ours / 2**20 == pytest.approx(sum(buffers), abs=0.005)


def test_cells_of_a_window_by_hand():
    """Gemma 4 E4B's log has 1,024 cells for windows of 512: the window and a batch of 512."""
    assert llama_cpp.window_cells(512, 512, 1, False) == 1024
    # 1,024 + 500 in whole 256; four windows and one batch, 2,560, shared by four sequences
    assert llama_cpp.window_cells(1024, 500, 1, False) == 1536
    assert llama_cpp.window_cells(512, 512, 4, True) == 640
    assert llama_cpp.window_cells(512, 512, 4, False) == 1024


def test_windows_hold_a_batch_too():
    """Gemma 3 27B by hand: 10 layers of all tokens, 52 of 1,536; 16 heads of 128, keys and values of 2 bytes."""
    line = "llama_kv_cache: size = 2560.00 MiB, K (f16): 1280.00 MiB, V (f16): 1280.00 MiB"
    term = _term("Gemma 3 27b It", 1, 32_768, [2560, 624], line)
    assert term.ours == (10 * 32_768 + 52 * 1536) * 2 * 16 * 128 * 2
    whole = _term("Gemma 3 27b It", 1, 32_768, [15_872], line, "llama_kv_cache_iswa: using full-size SWA cache\n")
    assert whole.ours == 62 * 32_768 * 2 * 16 * 128 * 2


def test_keys_of_an_index_have_the_type_of_keys():
    key, model = quantizers.parse("q8_0"), catalog.model("glm-5.2")
    found = {layer.index_bits for layer in llama_cpp.cached(model, key, 512).layers}
    assert found == {0, 128 * 34 * 8 // 32}
    assert {layer.index_bits for layer in model.layers} == {0, 128 * 8 + 32}


def test_expanded_heads_of_deepseek_by_hand():
    layer = llama_cpp.cached(catalog.model("deepseek-v3"), quantizers.parse("fp16"), 512, is_expanded=True).layers[0]
    assert (layer.n_kv_heads, layer.key_dim, layer.value_dim, layer.score_dim) == (128, 192, 128, 320)
