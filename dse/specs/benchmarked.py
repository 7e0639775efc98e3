"""Servers as public benchmarks found them: releases whose steps nobody published, fitted to loops and bursts instead.

A share multiplies the rate that products reach in kernel benchmarks: steps of servers mix prompts of many lengths with
decoding. A release that was measured step by step (hwspecs/stacks) keeps its own numbers. A fit holds where it was
made: for its kind of models, on its devices, in its formats of weights, and only if it rests on `FEWEST_ROWS` or more.
All else is the nearest measured release (`dse.specs.stack.served`). docs/explanation/calibration.md, Public benchmarks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dse.specs.quantity import Quantity
from dse.specs.releases import release_of

#: benchmarks below which nothing is said of a server: a factor of fewer is the chance of its rows
FEWEST_ROWS = 30


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
    kind: Literal["dense", "mixture"]
    #: benchmarks fitted, by device and format of weights (of the experts, in mixtures; `dse.specs.stack.WeightCode`)
    rows: Mapping[tuple[str, str], int]
    #: of the rate of products in kernel benchmarks: of dense products, of routed experts, of attention over prompts
    dense_share: Quantity
    experts_share: Quantity
    prompt_attention_share: Quantity
    #: of a step and layer; of a sequence in a step; of a prompt and layer before its first token
    layer: Quantity
    sequence: Quantity
    prompt: Quantity
    #: of that, the share in which the others wait, as a prompt is started kernel by kernel
    blocking_share: Quantity
    #: rounds until requests of unequal lengths have fallen out of step
    rounds_in_step: Quantity
    spread: Ratios

    def holds(self, device: str, code: str) -> bool:
        """Return True where the fit may be used: on enough rows, and some of them of this device and format."""
        return sum(self.rows.values()) >= FEWEST_ROWS and (device, code) in self.rows

    def quantities(self) -> dict[str, Quantity]:
        """Every number by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Quantity)}


def _fitted(value: float, unit: str, source: str) -> Quantity:
    return Quantity(value=value, unit=unit, source=source, kind="derived")


_LAB = "fitted to GPUStack's performance lab (github.com/gpustack/gpustack, docs/performance-lab; bursts)"
_VLLM = f"{_LAB}, vLLM 0.10.2 to 0.13.0 on A100 and H100"
_COOKBOOK = "fitted to SGLang's cookbook (github.com/sgl-project/sgl-cookbook; closed loops on A100 and B200)"
_SGLANG = f"{_COOKBOOK} and {_LAB}, SGLang 0.5.3 to 0.5.8"
# The shares were fitted with these seconds held fixed; whole steps fitted since (hwspecs/stacks) say others, by 2 to
# 22 %, which do not belong to these shares.
_HELD = "held fixed while the shares were fitted, at an earlier fit of whole steps of"
_ALL = f"{_HELD} all stacks and releases"
_LAYER, _SEQUENCE = _fitted(19.16, "us", _ALL), _fitted(15.98, "us", _ALL)
_VLLM_ROUNDS = _fitted(1.396, "1", f"{_HELD} vLLM")

RELEASES = (
    Benchmarked(
        stack="vllm",
        since=(0, 9),
        until=(0, 15),
        kind="dense",
        rows={("A100-80GB", "bf16"): 31},
        dense_share=_fitted(0.8, "1", _VLLM),
        experts_share=_fitted(1.0, "1", "a dense model has no experts"),
        prompt_attention_share=_fitted(0.7, "1", _VLLM),
        layer=_LAYER,
        sequence=_SEQUENCE,
        prompt=_fitted(411.0, "us", f"{_HELD} vLLM"),
        blocking_share=_fitted(0.0, "1", _VLLM),
        rounds_in_step=_VLLM_ROUNDS,
        spread=Ratios(0.9, 1.18, 0.42, 1.4, 65),
    ),
    Benchmarked(
        stack="vllm",
        since=(0, 9),
        until=(0, 15),
        kind="mixture",
        rows={("A100-80GB", "bf16"): 10, ("H100", "mxfp4"): 27},
        dense_share=_fitted(0.8, "1", _VLLM),
        experts_share=_fitted(0.55, "1", _VLLM),
        prompt_attention_share=_fitted(0.7, "1", _VLLM),
        layer=_LAYER,
        sequence=_SEQUENCE,
        prompt=_fitted(1319.2, "us", f"{_HELD} vLLM"),
        blocking_share=_fitted(0.0, "1", _VLLM),
        rounds_in_step=_VLLM_ROUNDS,
        spread=Ratios(0.75, 1.28, 0.8, 1.5, 86),
    ),
    Benchmarked(
        stack="sglang",
        since=(0, 5),
        until=(0, 5, 9),
        kind="mixture",
        rows={("A100-80GB", "bf16"): 10, ("B200", "bf16"): 20, ("B200", "fp8_block"): 6, ("H200", "fp8_block"): 15},
        dense_share=_fitted(1.0, "1", _SGLANG),
        experts_share=_fitted(1.4, "1", _SGLANG),
        prompt_attention_share=_fitted(1.0, "1", _SGLANG),
        layer=_fitted(65.0, "us", _SGLANG),
        sequence=_SEQUENCE,
        prompt=_fitted(1300.0, "us", _SGLANG),
        blocking_share=_fitted(0.8, "1", _SGLANG),
        rounds_in_step=_fitted(0.3, "1", _SGLANG),
        spread=Ratios(0.8, 1.3, 0.65, 1.9, 60),
    ),
)


def of(stack: str, release: str) -> tuple[Benchmarked, ...]:
    """Return the fits of a release; none where none of its time was benchmarked or no release is named."""
    if not release or not release[0].isdigit():
        return ()
    at = release_of(release)
    return tuple(one for one in RELEASES if one.stack == stack and one.since <= at < one.until)
