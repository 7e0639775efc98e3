"""Tables of rotary positions that servers keep: a row of cosines and sines for each position."""

from typing import TYPE_CHECKING, Any

from dse.specs.huggingface.keys import MAX_TOKENS

if TYPE_CHECKING:
    from dse.specs.huggingface.keys import Keys
    from dse.specs.huggingface.mixers import Mixer

#: types without rotary positions
NONE = ("gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "mpt", "nemotron_h")


def stretched(keys: "Keys", positions: int | None) -> int | None:
    """Positions of a model that YaRN stretches: its original ones times the factor, where config.json says fewer.

    LongRoPE's config.json has the long context as its own.
    """
    said = keys.get("rope_parameters") or keys.get("rope_scaling")
    scaling = said if isinstance(said, dict) else {}
    if positions is None or scaling.get("rope_type", scaling.get("type")) != "yarn":
        return positions
    original, factor = scaling.get("original_max_position_embeddings") or positions, scaling.get("factor")
    if not isinstance(original, int) or not isinstance(factor, int | float) or not 1 <= factor * original <= MAX_TOKENS:
        return positions
    return max(positions, int(factor * original))


def elements(keys: "Keys", model_type: str, positions: int | None, mixers: "list[Mixer]") -> int:
    """Elements of all tables of a model of so many positions; 0 where it has none or its positions are not given.

    Positions that are scaled linearly have a row for each scaled one. Layers of a kind share a table.
    """
    caches = [cache for mixer in mixers for cache in mixer.caches if cache.key_dim]
    if model_type in NONE or keys.flag("mla_use_nope") or not positions or not caches:
        return 0
    latent = [2 * cache.key_dim - cache.score_dim for cache in caches if cache.is_latent]
    width = min(latent) if latent else max(cache.key_dim for cache in caches)
    scaling = keys.get("rope_parameters") or keys.get("rope_scaling")
    kinds = [table for table in scaling.values() if isinstance(table, dict)] if isinstance(scaling, dict) else []
    total = sum(_table(keys, table, positions, width) for table in kinds or [scaling])
    # Gemma 3: windowed layers turn by a base of their own, without scaling
    return total + (positions * width if keys.get("rope_local_base_freq") else 0)


def _table(keys: "Keys", scaling: Any, positions: int, width: int) -> int:
    """Elements of one table."""
    table = scaling if isinstance(scaling, dict) else {}
    kind, factor = table.get("rope_type", table.get("type")), table.get("factor")
    share = table.get("partial_rotary_factor")
    for name in ("partial_rotary_factor", "rotary_pct"):
        share = keys.get(name) if share is None else share
    if isinstance(dim := keys.get("rotary_dim"), int) and 0 < dim <= width:
        width = dim
    elif isinstance(share, int | float) and 0 < share < 1:
        width = int(width * share)
    rows = positions
    if kind == "linear" and isinstance(factor, int | float) and 1 < factor <= MAX_TOKENS:
        rows = int(positions * factor)
    return rows * width
