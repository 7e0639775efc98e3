"""Count the tower of a config.json that makes tokens of images, as servers load it beside the language model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dse.specs.huggingface.keys import Keys

#: keys of a tower's section by what they say; the first that is there counts
_NAMES = {
    "layers": ("num_hidden_layers", "depth", "vt_num_hidden_layers", "num_layers"),
    "width": ("hidden_size", "vt_hidden_size", "embed_dim"),
    "ffn": ("intermediate_size", "vt_intermediate_size"),
    "patch": ("patch_size",),
}
#: towers whose feed-forwards have a gate
_GATED = ("pixtral", "gemma4_vision", "qwen2_5_vl", "qwen2_5_vl_vision")
_MOST = 2**16
#: patches of the largest image by the preprocessor_config.json of a family of towers: 12,845,056 pixels in patches of
#: 14 x 14, 16,777,216 in patches of 16 x 16
_IMAGE_PATCHES = {"qwen2_5_vl": 65_536, "qwen3_vl": 65_536, "qwen3_5": 65_536}


def parameters(keys: "Keys", hidden: int) -> int:
    """Parameters of the image tower and of what projects its tokens to `hidden` channels; 0 where there is none.

    Counted: the matrices of its layers, the patches, learned positions and the projection. Biases and norms, a
    thousandth, are not.
    """
    section = keys.document.data.get("vision_config")
    sizes = {name: _whole(section, names) for name, names in _NAMES.items()} if isinstance(section, dict) else {}
    if not sizes or not all(sizes[name] for name in ("layers", "width", "ffn")):
        if section:
            keys.note("vision_config without sizes of layers: its tower is not counted")
        return 0
    assert isinstance(section, dict)
    width, patch = sizes["width"], sizes["patch"] or 14
    matrices = 3 if (section.get("model_type") or keys.document.data.get("model_type")) in _GATED else 2
    attention = 4 * width * (_whole(section, ("qkv_hidden_size",)) or width)
    total = sizes["layers"] * (attention + matrices * width * sizes["ffn"])
    total += 3 * patch * patch * (_whole(section, ("temporal_patch_size",)) or 1) * width
    total += _positions(section, patch) * width
    return total + _projection(section, width, hidden)


def image_elements(keys: "Keys") -> int | None:
    """Values of one width of the tower for the largest image that it takes; None where that size is not known."""
    section = keys.document.data.get("vision_config")
    family = str((section or {}).get("model_type") or keys.document.data.get("model_type") or "")
    patches = next((n for name, n in _IMAGE_PATCHES.items() if family.startswith(name)), 0)
    return patches * _whole(section, _NAMES["width"]) or None


def _positions(section: dict[str, Any], patch: int) -> int:
    """Learned positions of a tower."""
    if section.get("position_embedding_type") == "rope" or section.get("model_type") in ("pixtral", "gemma4_vision"):
        return 0
    if n_positions := _whole(section, ("num_position_embeddings",)):
        return n_positions
    rows = _whole(section, ("init_pos_emb_height",)) * _whole(section, ("init_pos_emb_width",))
    return rows or (_whole(section, ("image_size",)) // patch) ** 2


def _projection(section: dict[str, Any], width: int, hidden: int) -> int:
    """Parameters that turn the tower's tokens into the model's: two products over merged patches, or one."""
    merged = section.get("merge_kernel_size")
    side = _whole(section, ("spatial_merge_size",)) or (merged[0] if isinstance(merged, list) and merged else 0)
    if not isinstance(side, int) or not 0 < side <= 16:
        return width * hidden
    wide, deep = width * side * side, section.get("deepstack_visual_indexes")
    n_times = 1 + (len(deep) if isinstance(deep, list) else 0)
    return n_times * wide * (wide + hidden)


def _whole(section: Any, names: tuple[str, ...]) -> int:
    """The first of some keys that has a whole number, 0 for none."""
    values = (section.get(name) for name in names)
    good = (value for value in values if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST)
    return next(good, 0)
