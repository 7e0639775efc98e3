"""Hugging Face's QuantizedCache with the Quanto backend: asymmetric groups of one tensor, every step in FP16."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from kernels_ref import half
from kernels_ref.inputs import KVTensor, NonFinite, check_choice, check_count, head_parts, kv_tensor
from kernels_ref.jit import inner, sequential
from kernels_ref.packed import Packed

#: one thread; its compiled code is kept for this file as it is
kernel = partial(sequential, sources=(Path(__file__),))


@inner
def _encode_group(bits: np.ndarray, width: int, packed: np.ndarray) -> tuple[np.float32, np.float32]:
    """Codes of one group into packed; (scale, shift) as float32."""
    smallest, largest = half.extent(bits)
    levels = np.float32(2**width - 1)
    extent = half.rounded(half.limited(np.float32(largest - smallest)))
    scale = half.rounded(np.float32(extent / levels))
    in_byte = 8 // width
    packed[:] = np.uint8(0)
    if scale > np.float32(0):
        for i in range(bits.size):
            moved = half.rounded(half.limited(np.float32(half.to_f32(bits[i]) - smallest)))
            steps = half.rounded(half.limited(np.float32(moved / scale)))
            code = min(half.rint(steps), levels)
            packed[i // in_byte] |= np.uint8(np.int32(code) << (width * (i % in_byte)))
    return scale, -smallest


@kernel
def _encode(bits: np.ndarray, width: int, packed: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> None:
    """FP16 patterns bits[groups, g] -> packed[groups, g * width / 8], patterns scale and shift[groups]."""
    for group in range(len(bits)):
        group_scale, group_shift = _encode_group(bits[group], width, packed[group])
        scale[group], shift[group] = half.from_f32(group_scale), half.from_f32(group_shift)


@inner
def _decode_group(
    packed: np.ndarray, width: int, scale: np.float32, shift: np.float32, values: np.ndarray, bits: np.ndarray
) -> None:
    for code in range(2**width):
        product = half.rounded(half.limited(np.float32(scale * np.float32(code))))
        values[code] = half.from_f32(half.limited(np.float32(product - shift)))
    in_byte, mask = 8 // width, 2**width - 1
    for i in range(bits.size):
        bits[i] = values[(packed[i // in_byte] >> (width * (i % in_byte))) & mask]


@kernel
def _decode(packed: np.ndarray, width: int, scale: np.ndarray, shift: np.ndarray, bits: np.ndarray) -> None:
    """The reverse of `_encode`."""
    values = np.empty(16, np.uint16)
    for group in range(len(bits)):
        group_scale, group_shift = half.to_f32(scale[group]), half.to_f32(shift[group])
        _decode_group(packed[group], width, group_scale, group_shift, values, bits[group])


@dataclass(frozen=True)
class Quanto:
    """scale = h(h(max - min) / M), shift = -min, code = clip(rint(h(h(x + shift) / scale)), 0, M), M = 2^bits - 1;
    decoded as h(h(scale * code) - shift).

    axis 0: a group is `group` consecutive elements of the tensor [batch, heads, tokens, head_dim]; axis -1: of the
    values of one channel, in the order of batch, head and token. `group` must divide their number. Where the scale is 0
    the codes are 0. A range, product or decoded value beyond 65504 is taken as 65504.

    HF's cache keeps recent tokens in FP16 and packs the whole history anew whenever they are full; this is one packing.

    Buffers (packing defined here): `codes` uint8 [groups, group * bits / 8], first element in the lowest bits; `scale`
    and `shift` float16 [groups]. Groups of axis -1 go channel by channel.
    Source: transformers 5.23.0 QuantoQuantizedLayer; optimum-quanto 0.2.7 MaxOptimizer and quantize_weight.
    """

    bits: Literal[2, 4] = 4
    group: int = 64
    axis: Literal[0, -1] = 0

    def __post_init__(self) -> None:
        check_choice("bits", self.bits, (2, 4))
        check_choice("axis", self.axis, (0, -1))
        check_count("group", self.group)
        if self.group * self.bits % 8:
            raise ValueError(f"group = {self.group}: must fill whole bytes, a multiple of {8 // self.bits}")

    def quantize(self, x: np.ndarray, n_heads: int = 1, nonfinite: NonFinite = "raise") -> Packed:
        """Quantize [tokens, channels] of `n_heads` heads or [batch, heads, tokens, head_dim].

        Raises TypeError and ValueError for what is not such a tensor, for a number of values that `group` does not
        divide, and for values that are not finite unless `nonfinite` is "replace".
        """
        tensor = kv_tensor(x, n_heads, nonfinite)
        self._check(x.size, tensor.array.shape[3])
        n_lanes = tensor.array.shape[3] if self.axis else 1
        per_lane = x.size // self.group // n_lanes
        codes = np.empty((n_lanes, per_lane, self.group * self.bits // 8), np.uint8)
        scale, shift = np.empty((2, n_lanes, per_lane), np.uint16)
        at = 0
        for groups in self._groups(tensor):
            n = len(groups) // n_lanes
            part = np.empty((len(groups), codes.shape[2]), np.uint8)
            ones = np.empty((2, len(groups)), np.uint16)
            _encode(groups, self.bits, part, ones[0], ones[1])
            codes[:, at : at + n] = part.reshape(n_lanes, n, -1)
            scale[:, at : at + n], shift[:, at : at + n] = ones.reshape(2, n_lanes, n)
            at += n
        buffers: dict[str, np.ndarray] = {
            "codes": codes.reshape(-1, codes.shape[2]),
            "scale": scale.reshape(-1).view(np.float16),
            "shift": shift.reshape(-1).view(np.float16),
        }
        parts = {"codes": "payload", "scale": "scales", "shift": "zero_points"}
        return Packed(self, shape=x.shape, n_elements=x.size, buffers=buffers, part_of=parts, n_heads=n_heads)

    def _check(self, size: int, head_dim: int) -> None:
        number = size // head_dim if self.axis else size
        if number % self.group:
            what = "values of a channel" if self.axis else "elements"
            raise ValueError(f"group = {self.group}: must divide the {number} {what}")

    def _groups(self, tensor: KVTensor) -> Iterator[np.ndarray]:
        """FP16 patterns [groups, group] piece by piece; of axis -1 as many groups of every channel."""
        n_batch, n_heads, n_tokens, head_dim = tensor.array.shape
        rest = np.empty((0, head_dim) if self.axis else 0, np.uint16)
        for part in head_parts(n_batch, n_heads, n_tokens, 2 * head_dim):
            bits = tensor.patterns(*part)
            piece = bits.reshape(-1, head_dim) if self.axis else bits.reshape(-1)
            if len(rest):
                piece = np.concatenate([rest, piece])
            whole = len(piece) // self.group * self.group
            rest = piece[whole:]
            if self.axis:
                lanes = piece[:whole].reshape(-1, self.group, head_dim).transpose(2, 0, 1)
                yield np.ascontiguousarray(lanes).reshape(-1, self.group)
            else:
                yield piece[:whole].reshape(-1, self.group)

    def dequantize(self, packed: Packed) -> np.ndarray:
        """FP16 of the quantized shape."""
        shape, four = packed.shape, packed.axes
        n_groups = int(np.prod(shape)) // self.group
        wanted = {"codes": (n_groups, self.group * self.bits // 8), "scale": (n_groups,), "shift": (n_groups,)}
        for name, want in wanted.items():
            buffer = packed.buffers.get(name, np.empty(0))
            if buffer.shape != want or buffer.dtype != (np.uint8 if name == "codes" else np.float16):
                raise ValueError(f"buffer {name}: is {buffer.dtype.name} {list(buffer.shape)}, must be {list(want)}")
        codes = packed.buffers["codes"]
        scale, shift = packed.buffers["scale"].view(np.uint16), packed.buffers["shift"].view(np.uint16)
        out = np.empty(four, np.float16)
        if not self.axis:
            _decode(codes, self.bits, scale, shift, out.view(np.uint16).reshape(-1, self.group))
        elif n_groups:
            rows = out.reshape(-1, four[3])
            lane = n_groups // four[3]
            for channel in range(four[3]):
                mine = slice(channel * lane, (channel + 1) * lane)
                bits = np.empty((lane, self.group), np.uint16)
                _decode(codes[mine], self.bits, scale[mine], shift[mine], bits)
                rows[:, channel] = bits.reshape(-1).view(np.float16)
        return out if len(shape) == 4 else out.transpose(0, 2, 1, 3).reshape(shape)
