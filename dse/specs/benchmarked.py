"""Servers as public benchmarks found them: releases whose steps nobody published, fitted to loops and bursts instead.

A share multiplies the rate that products reach in kernel benchmarks: steps of servers mix prompts of many lengths with
decoding, and formats that a device has no arithmetic for are unpacked first. Seconds add to a step or to a prompt. A
release that was measured step by step (hwspecs/stacks) keeps its own numbers. docs/explanation/calibration.md, Public
benchmarks, says what was fitted on what.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from dse.specs.quantity import Quantity
from dse.specs.servers import release_of


class Ratios(NamedTuple):
    """Measured over predicted in 8 of 10 values of the rows fitted: times per token, and to the first."""

    low: float
    high: float
    first_low: float
    first_high: float
    n_points: int


@dataclass(frozen=True)
class Benchmarked:
    """Numbers of a stack in the releases from `since` to before `until`."""

    stack: str
    since: tuple[int, ...]
    until: tuple[int, ...]
    #: of the rate of products in kernel benchmarks: of dense products, of routed experts, of attention over prompts
    dense_share: Quantity
    experts_share: Quantity
    prompt_attention_share: Quantity
    #: of either rate, where weights have 8 bits with scales of blocks
    block_share: Quantity
    #: of the rate of dense products, where weights have a format that no kernel benchmark of the device has
    unpacked_share: Quantity
    #: of the rate of 16-bit experts, where they stand in for such a format
    stand_in_share: Quantity
    #: of a step and layer, in place of the server's own where it is given; and what mixtures add
    layer: Quantity | None
    experts_layer: Quantity
    #: of a prompt and layer before its first token, and what mixtures add; None: as measured elsewhere
    prompt: Quantity | None
    experts_prompt: Quantity | None
    #: of that, the share in which the others wait, as a prompt is started kernel by kernel
    blocking_share: Quantity
    #: rounds until requests of unequal lengths have fallen out of step; None: as measured elsewhere
    rounds_in_step: Quantity | None
    spread: dict[Literal["dense", "mixture"], Ratios]

    def quantities(self) -> dict[str, Quantity]:
        """Every number by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Quantity)}


def _fitted(value: float, unit: str, source: str) -> Quantity:
    return Quantity(value=value, unit=unit, source=source, kind="derived")


_LAB = "fitted to GPUStack's performance lab (github.com/gpustack/gpustack, docs/performance-lab; bursts)"
_VLLM = f"{_LAB}, vLLM 0.10.2 to 0.13.0 on A100, H100 and H200"
_COOKBOOK = "fitted to SGLang's cookbook (github.com/sgl-project/sgl-cookbook; closed loops on A100, B200, MI300X)"
_SGLANG = f"{_COOKBOOK} and {_LAB}, SGLang 0.5.3 to 0.5.8"
_TRTLLM = f"{_LAB}, TensorRT-LLM 1.0.0 to 1.2.0rc5 on A100, H100 and H200"

RELEASES = (
    Benchmarked(
        stack="vllm",
        since=(0, 9),
        until=(0, 15),
        dense_share=_fitted(0.8, "1", _VLLM),
        experts_share=_fitted(0.55, "1", _VLLM),
        prompt_attention_share=_fitted(0.7, "1", _VLLM),
        block_share=_fitted(0.6, "1", _VLLM),
        unpacked_share=_fitted(0.55, "1", _VLLM),
        stand_in_share=_fitted(1.1, "1", _VLLM),
        layer=None,
        experts_layer=_fitted(0.0, "us", _VLLM),
        prompt=None,
        experts_prompt=None,
        blocking_share=_fitted(0.0, "1", _VLLM),
        rounds_in_step=None,
        spread={"dense": Ratios(0.9, 1.18, 0.42, 1.4, 65), "mixture": Ratios(0.75, 1.28, 0.8, 1.5, 86)},
    ),
    Benchmarked(
        stack="sglang",
        since=(0, 5),
        until=(0, 5, 9),
        dense_share=_fitted(1.0, "1", _SGLANG),
        experts_share=_fitted(1.4, "1", _SGLANG),
        prompt_attention_share=_fitted(1.0, "1", _SGLANG),
        block_share=_fitted(1.0, "1", _SGLANG),
        unpacked_share=_fitted(0.6, "1", _SGLANG),
        stand_in_share=_fitted(0.5, "1", _SGLANG),
        layer=_fitted(32.0, "us", _SGLANG),
        experts_layer=_fitted(33.0, "us", _SGLANG),
        prompt=_fitted(800.0, "us", _SGLANG),
        experts_prompt=_fitted(500.0, "us", _SGLANG),
        blocking_share=_fitted(0.8, "1", _SGLANG),
        rounds_in_step=_fitted(0.3, "1", _SGLANG),
        spread={"dense": Ratios(0.87, 1.2, 0.55, 1.5, 10), "mixture": Ratios(0.8, 1.3, 0.65, 1.9, 60)},
    ),
    Benchmarked(
        stack="trtllm",
        since=(1, 0),
        until=(1, 3),
        dense_share=_fitted(1.0, "1", _TRTLLM),
        experts_share=_fitted(0.12, "1", _TRTLLM),
        prompt_attention_share=_fitted(1.0, "1", _TRTLLM),
        block_share=_fitted(1.0, "1", _TRTLLM),
        unpacked_share=_fitted(0.6, "1", _TRTLLM),
        stand_in_share=_fitted(0.5, "1", _TRTLLM),
        layer=None,
        experts_layer=_fitted(0.0, "us", _TRTLLM),
        prompt=None,
        experts_prompt=None,
        blocking_share=_fitted(0.0, "1", _TRTLLM),
        rounds_in_step=None,
        spread={"dense": Ratios(0.8, 1.1, 0.9, 1.3, 12), "mixture": Ratios(0.75, 2.2, 0.9, 2.5, 5)},
    ),
)


def of(stack: str, release: str) -> Benchmarked | None:
    """The numbers of a release, None where none of its time was benchmarked or no release is named."""
    if not release or not release[0].isdigit():
        return None
    at = release_of(release)
    return next((one for one in RELEASES if one.stack == stack and one.since <= at < one.until), None)
