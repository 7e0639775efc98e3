"""vLLM's options (--kv-cache-dtype, --kv-cache-dtype-skip-layers) for quantizers by layer."""

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


def arguments(layers: Sequence[tuple[str, str]]) -> str:
    """vLLM's options for quantizers of keys and of values by layer: one format, the others in 16 bits.

    Raises InputError with the reason where vLLM cannot store them so.
    """
    for i, (key, value) in enumerate(layers):
        if key != value and not (_is_exact(key) and _is_exact(value)):
            raise InputError(f"layer {i} has {key} for keys and {value} for values: vLLM stores both in one format")
    quantized = list(dict.fromkeys(key for key, _ in layers if not _is_exact(key)))
    if not quantized:
        return "--kv-cache-dtype auto"
    if len(quantized) > 1:
        raise InputError(f"layers have {' and '.join(quantized[:2])}: vLLM has one format beside 16 bits")
    name = quantized[0]
    if name not in served():
        raise InputError(f"vLLM has no {name}: it has {', '.join(served().values())}")
    skipped = [i for i, (key, _) in enumerate(layers) if _is_exact(key)]
    if skip := FAMILIES[name.partition(":")[0]].skip:
        kept = sorted({int(i) % len(layers) for i in skip.split("+") if int(i) < len(layers)})
        if missing := [i for i in kept if i not in skipped]:
            raise InputError(f"layer {missing[0]} has {name}: vLLM keeps the first two and last two layers in 16 bits")
    flags = f"--kv-cache-dtype {served()[name]}"
    return flags + (f" --kv-cache-dtype-skip-layers {' '.join(map(str, skipped))}" if skipped else "")
