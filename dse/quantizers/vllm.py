"""vLLM's options (--kv-cache-dtype, --kv-cache-dtype-skip-layers) for quantizers by layer: one type beside 16 bits."""

from collections.abc import Sequence
from functools import cache

from dse.core.errors import InputError
from dse.quantizers.registry import FAMILIES


@cache
def served() -> dict[str, str]:
    """Quantizers below 16 bits that vLLM stores, by their text here, with vLLM's name."""
    names = [
        entry
        for family in FAMILIES.values()
        for entry in family.engines
        if entry.engine == "vLLM" and not family.exact and not entry.missing
    ]
    return {entry.text: entry.name for entry in sorted(names, key=lambda entry: entry.name == entry.text)}


def _is_exact(name: str) -> bool:
    return name in FAMILIES and FAMILIES[name].exact


def own_layers(name: str, n_layers: int, *, is_hybrid: bool = False) -> tuple[int, ...]:
    """The layers that vLLM keeps in 16 bits by itself under a quantizer: of TurboQuant's the first two and last two, of
    a hybrid none."""
    skip = FAMILIES[name.partition(":")[0]].skip
    if not skip or is_hybrid:
        return ()
    return tuple(sorted({int(i) % n_layers for i in skip.split("+") if -n_layers <= int(i) < n_layers}))


def one_type(layers: Sequence[tuple[str, str]], *, is_hybrid: bool = False) -> tuple[str, tuple[int, ...]]:
    """The quantizer of the layers that are packed, and the layers in 16 bits that vLLM must be told; "fp16" where none
    is packed. `layers` are the quantizers of keys and of values by layer.

    Raises InputError with the reason where vLLM cannot store them so.
    """
    for i, (key, value) in enumerate(layers):
        if key != value and not (_is_exact(key) and _is_exact(value)):
            raise InputError(f"layer {i} has {key} for keys and {value} for values: vLLM stores both in one format")
    quantized = list(dict.fromkeys(key for key, _ in layers if not _is_exact(key)))
    if not quantized:
        return "fp16", ()
    if len(quantized) > 1:
        raise InputError(f"layers have {' and '.join(quantized[:2])}: vLLM has one format beside 16 bits")
    name = quantized[0]
    if name not in served():
        raise InputError(f"vLLM has no {name}: it has {', '.join(served().values())}")
    kept = tuple(i for i, (key, _) in enumerate(layers) if _is_exact(key))
    own = own_layers(name, len(layers), is_hybrid=is_hybrid)
    if missing := [i for i in own if i not in kept]:
        raise InputError(f"layer {missing[0]} has {name}: vLLM keeps the first two and last two layers in 16 bits")
    return name, () if kept == own else kept


def arguments(layers: Sequence[tuple[str, str]]) -> str:
    """vLLM's options for quantizers of keys and of values by layer. Raises InputError as `one_type` does."""
    name, kept = one_type(layers)
    flags = f"--kv-cache-dtype {served().get(name, 'auto')}"
    return flags + (f" --kv-cache-dtype-skip-layers {' '.join(map(str, kept))}" if kept else "")
