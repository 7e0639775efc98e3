"""Cache formats of vLLM (--kv-cache-dtype): a scale per token and head, TurboQuant, slots of latent (MLA) heads."""

from collections.abc import Sequence

from dse.core.errors import InputError
from dse.core.units import BITS_PER_BYTE
from dse.quantizers.base import Family, TensorLayout, TensorShape, Values
from kernels_ref import FORMATS, TURBOQUANT_TYPES, TurboQuantType, storage

#: other spellings of a quantizer, and what they stand for
ALIASES = {
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8:format=e5m2",
    **{f"turboquant:{name}": f"turboquant_{name}" for name in TURBOQUANT_TYPES},
}
#: layers that TurboQuant keeps in 16 bits where no others are named (vLLM 0.33.0, quantization/turboquant/config.py)
TURBOQUANT_SKIPS = "0+1+-2+-1"
#: bits of a code, and what head_dim must be a multiple of: scales stand on addresses of 4 bytes
_PER_HEAD = {"int8": (8, 4), "fp8": (8, 4), "int4": (4, 8)}
#: latent channels that share a scale, bits of: a latent code, the scale, a RoPE value
_LATENT = {"fp8": (128, 8, 32, 16), "nvfp4": (16, 4, 8, 8)}


def _check_sides(name: str, shape: TensorShape) -> None:
    """Raise InputError unless keys and values have one head dimension, where that of the other side is known."""
    if shape.other_dim == 0:
        raise InputError(
            f"quantizer = {name}: is for keys and values, not for latent (MLA) heads: take fp8, fp8_ds_mla or "
            "nvfp4_ds_mla"
        )
    if shape.other_dim not in (None, shape.head_dim):
        dims = sorted((shape.head_dim, shape.other_dim or 0), reverse=True)
        raise InputError(
            f"quantizer = {name}: head_dim = {dims[0]} and {dims[1]}: keys and values must have the same in a slot"
        )


def _per_token_head(fmt: str) -> Family:
    name, (bits, multiple) = f"{fmt}_per_token_head", _PER_HEAD[fmt]

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        _check_sides(name, shape)
        if shape.head_dim % multiple:
            raise InputError(
                f"quantizer = {name}: head_dim = {shape.head_dim}: must be a multiple of {multiple}: its scales stand "
                "on addresses of 4 bytes"
            )
        scales = FORMATS["fp32"].bits * shape.n_heads
        return TensorLayout(shape, {"payload": bits * shape.n_elements, "scales": scales})

    how = "rotated, zero point in the low bits of the FP32 scale" if fmt == "int4" else "FP32 scale"
    source = f"vLLM 0.33.0 --kv-cache-dtype {name}: one per token and head, {how} (triton_reshape_and_cache_flash.py)"
    return Family(name, f"{fmt.upper()} per token and head", source, layout, by_default=False)


def _turboquant(entry: TurboQuantType) -> Family:
    name = f"turboquant_{entry.name}"

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        _check_sides(name, shape)
        if problem := entry.problem(shape.head_dim):
            raise InputError(f"quantizer = {name}: {problem.partition(' for ')[0]}")
        value = storage.group_value * shape.n_heads
        if shape.which == "key":
            packed = {"payload": entry.key_bits * shape.n_elements}
            return TensorLayout(shape, packed | ({"scales": value} if entry.key_bits < BITS_PER_BYTE else {}))
        packed = {"payload": entry.value_bits * shape.n_elements, "scales": value, "zero_points": value}
        if padding := entry.padding_bytes(shape.head_dim):
            packed["padding"] = BITS_PER_BYTE * padding * shape.n_heads
        return TensorLayout(shape, packed)

    keys = "E4M3 keys" if entry.key_bits == BITS_PER_BYTE else f"keys as norm and {entry.key_bits}-bit indices, rotated"
    source = (
        f"vLLM 0.33.0 --kv-cache-dtype {name}: {keys}; {entry.value_bits}-bit values with scale and minimum "
        "(triton_turboquant_store.py)"
    )
    return Family(name, f"TurboQuant {entry.name}", source, layout, by_default=False, skip=TURBOQUANT_SKIPS)


def _ds_mla(fmt: str) -> Family:
    name = f"{fmt}_ds_mla"
    block, code_bits, scale_bits, rope_bits = _LATENT[fmt]
    width = storage.mla_latent + storage.mla_rope

    def layout(values: Values, shape: TensorShape) -> TensorLayout:
        if shape.other_dim or shape.which != "key" or shape.n_heads != 1 or shape.head_dim != width:
            dims = f"{shape.n_heads} KV heads of {shape.head_dim}"
            raise InputError(
                f"quantizer = {name}: the model has {dims}: is for one latent (MLA) head of {storage.mla_latent} + "
                f"{storage.mla_rope} channels"
            )
        payload = code_bits * storage.mla_latent + rope_bits * storage.mla_rope
        return TensorLayout(shape, {"payload": payload, "scales": scale_bits * storage.mla_latent // block})

    rope = "RoPE in 16 bits" if fmt == "fp8" else "RoPE in E4M3"
    codes = "E4M3 in blocks of 128, FP32 scale" if fmt == "fp8" else "E2M1 in blocks of 16, E4M3 scale"
    source = f"vLLM 0.33.0 --kv-cache-dtype {name}: latent in {codes}; {rope} (csrc)"
    return Family(name, f"{fmt.upper()} latent slot", source, layout, by_default=False, latent=True)


FAMILIES = (
    *(_per_token_head(fmt) for fmt in _PER_HEAD),
    *(_turboquant(entry) for entry in TURBOQUANT_TYPES.values()),
    *(_ds_mla(fmt) for fmt in _LATENT),
)

#: quantizers that vLLM has under --kv-cache-dtype, by their text here
SERVED = {
    "fp8": "fp8",
    "fp8:format=e5m2": "fp8_e5m2",
    **{name: name for name in (*(family.name for family in FAMILIES), "nvfp4", "nvfp4_4over6")},
}
_SIXTEEN = ("fp16", "bf16")


def arguments(layers: Sequence[tuple[str, str]]) -> str:
    """What vLLM is started with for quantizers of keys and of values by layer: one format, the others in 16 bits.

    Raises InputError with the reason where vLLM cannot store them so.
    """
    for i, (key, value) in enumerate(layers):
        if key != value and not {key, value} <= set(_SIXTEEN):
            raise InputError(f"layer {i} has {key} for keys and {value} for values: vLLM stores both in one format")
    packed = list(dict.fromkeys(key for key, _ in layers if key not in _SIXTEEN))
    if not packed:
        return "--kv-cache-dtype auto"
    if len(packed) > 1:
        raise InputError(f"layers have {' and '.join(packed[:2])}: vLLM has one format beside 16 bits")
    name = packed[0]
    if name not in SERVED:
        raise InputError(f"vLLM has no {name}: it has {', '.join(SERVED.values())}")
    skipped = [i for i, (key, _) in enumerate(layers) if key in _SIXTEEN]
    if name.startswith("turboquant_"):
        own = sorted({int(i) % len(layers) for i in TURBOQUANT_SKIPS.split("+") if int(i) < len(layers)})
        if missing := [i for i in own if i not in skipped]:
            raise InputError(f"layer {missing[0]} has {name}: vLLM keeps the first two and last two layers in 16 bits")
    flags = f"--kv-cache-dtype {SERVED[name]}"
    return flags + (f" --kv-cache-dtype-skip-layers {' '.join(map(str, skipped))}" if skipped else "")
