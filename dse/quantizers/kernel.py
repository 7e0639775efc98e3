"""Run a family's bit-exact kernel (kernels_ref) on the tensors of a layer, or as a cache that grows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from kernels_ref.oaken import Thresholds
    from kernels_ref.packed import Packed

Side = Literal["key", "value"]
SIDES: tuple[Side, Side] = ("key", "value")
#: values of a family's parameters by name
Values = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Options of a run beside the tensors. `n_heads`: heads of tensors [tokens, channels]."""

    n_heads: int = 1
    nonfinite: Literal["raise", "replace"] = "raise"
    #: Oaken's, profiled offline
    thresholds: "Thresholds | None" = None


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantized tensor: its packed form, and the values that attention sees."""

    packed: "Packed"
    seen: "np.ndarray"
    #: counts for the measurement beside those of the packed form
    counts: Mapping[str, int]


@dataclass(frozen=True)
class Place:
    """The tensor that a method is made for; `x` holds values from which constants may be taken."""

    layer: int
    side: Side
    x: "np.ndarray"
    settings: Settings


class Method(Protocol):
    """A method of kernels_ref for one tensor."""

    def quantize(
        self, x: "np.ndarray", n_heads: int = 1, nonfinite: Literal["raise", "replace"] = "raise"
    ) -> "Packed": ...


class KernelRunner(ABC):
    """Runs a family's kernel. A subclass says how; `PerSide` serves where keys and values are quantized apart."""

    #: needs thresholds profiled offline
    needs_thresholds = False
    #: grows token by token; False: needs all tokens at once
    streams = True
    #: chooses tokens by attention, so that it needs the queries of all tokens: runs in the loop of a model alone
    needs_attention = False

    def check(self, name: str, values: Values, settings: Settings) -> None:
        """Raise InputError where `settings` lack what the quantizer `name` needs (default: it needs nothing)."""
        return None

    def calibrated(self, values: Values, layers: Sequence[Mapping[Side, "np.ndarray"]], model: str) -> Settings:
        """Constants of all layers from a calibration text's keys and values [batch, heads, tokens, head_dim]."""
        return Settings()

    @abstractmethod
    def run(
        self, values: Values, layer: int, tensors: Mapping[Side, "np.ndarray"], settings: Settings
    ) -> dict[Side, QuantizedTensor]:
        """Quantize keys and values of a layer. Raises ValueError and TypeError with the reason of the kernel."""

    @abstractmethod
    def cache(self, values: Values, layer: int, known: Mapping[Side, "np.ndarray"], settings: Settings) -> Any:
        """An empty cache of a layer; `known` holds values from which constants may be taken."""


class PerSide(KernelRunner):
    """A kernel that quantizes keys and values apart; `make` gives the method for a tensor."""

    def __init__(self, make: Callable[[Values, Place], Method], streams: bool = True) -> None:
        self.make, self.streams = make, streams

    def run(
        self, values: Values, layer: int, tensors: Mapping[Side, "np.ndarray"], settings: Settings
    ) -> dict[Side, QuantizedTensor]:
        """Quantize keys and values of a layer."""
        outcomes: dict[Side, QuantizedTensor] = {}
        for side, x in tensors.items():
            method = self.make(values, Place(layer, side, x, settings))
            try:
                packed = method.quantize(x, n_heads=settings.n_heads, nonfinite=settings.nonfinite)
            except ValueError as error:
                raise ValueError(f"{side}: {str(error).removeprefix('x: ')}") from error
            outcomes[side] = QuantizedTensor(packed, packed.dequantize(), packed.counts)
        return outcomes

    def methods(
        self, values: Values, layer: int, known: Mapping[Side, "np.ndarray"], settings: Settings
    ) -> dict[Side, Method]:
        """The methods of keys and of values."""
        return {side: self.make(values, Place(layer, side, known[side], settings)) for side in SIDES}

    def cache(self, values: Values, layer: int, known: Mapping[Side, "np.ndarray"], settings: Settings) -> Any:
        """An empty cache of a layer."""
        from kernels_ref import RowCache

        methods = self.methods(values, layer, known, settings)
        return RowCache(methods["key"], methods["value"])
