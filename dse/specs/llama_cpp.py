"""The cache of llama.cpp: layers of a model with the cells that it makes for them."""

from fractions import Fraction

from dse.quantizers import QuantizerSpec, TensorShape
from dse.specs.device_and_model import LayerKV, ModelSpec

#: contexts, and windows, are held in whole multiples of so many cells (src/llama-context.cpp, llama-kv-cache-iswa.cpp)
CELLS = 256
#: bits of an index key's scale where other engines keep it in FP8 (DeepSeek-V3.2): one FP32 for 128 channels
_INDEX_SCALE_BITS, _FP8_BITS = 32, 8


def window_cells(window: int, batch_tokens: int, n_sequences: int, is_unified: bool) -> int:
    """Cells of a layer with a window, of one sequence: room for the window and a batch behind it.

    A unified cache has a window of every sequence and one batch. Valid for positive counts.
    """
    n_windows = n_sequences if is_unified else 1
    cells = -(-(window * n_windows + batch_tokens) // CELLS) * CELLS
    return -(-cells // n_windows)


def expanded(layer: LayerKV, n_q_heads: int) -> LayerKV:
    """A latent (MLA) layer whose keys and values are stored for each query head (files without MLA, `-mla 0`).

    A head's width without RoPE is taken as that of its value where they are not told apart: 128 and 128 of DeepSeek.
    """
    if not layer.is_latent or layer.prompt_score_dim is None:
        return layer
    rope_dim = 2 * layer.key_dim - layer.score_dim
    value_dim = (layer.prompt_score_dim - rope_dim) // 2
    dims = {"n_kv_heads": n_q_heads, "key_dim": layer.prompt_score_dim - value_dim, "value_dim": value_dim}
    return layer.model_copy(update=dims | {"score_dim": layer.prompt_score_dim, "prompt_score_dim": None})


def cached(
    model: ModelSpec,
    key: QuantizerSpec,
    batch_tokens: int,
    n_sequences: int = 1,
    *,
    is_unified: bool = False,
    whole_windows: bool = False,
    is_expanded: bool = False,
) -> ModelSpec:
    """The model as llama.cpp's cache holds it: windows with a batch (or whole contexts, `--swa-full`), keys of an index
    in the type of all keys, latent heads expanded where they are."""
    layers = []
    for layer in model.layers:
        if layer.window:
            cells = window_cells(layer.window, batch_tokens, n_sequences, is_unified)
            layer = layer.model_copy(update={"window": None if whole_windows else cells, "chunked": False})
        if layer.sparse_kind == "dsa":
            channels = (layer.index_bits - _INDEX_SCALE_BITS) // _FP8_BITS
            bits = Fraction(key.layout(TensorShape("key", n_heads=1, head_dim=channels)).packed_bits_per_token)
            layer = layer.model_copy(update={"index_bits": int(bits)})
        layers.append(expanded(layer, model.n_q_heads) if is_expanded else layer)
    return model.model_copy(update={"layers": tuple(layers)})
