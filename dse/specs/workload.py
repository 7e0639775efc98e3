"""What is asked of a design: batch, lengths, admission, weight bits. Checked once, on entry."""

from dataclasses import dataclass
from typing import Literal

from dse.core.errors import InputError, show
from dse.specs.device_and_model import Path
from dse.specs.tokens import TokenPolicy, parse

#: largest batch, prompt and output that the tool accepts: generous, and far below where float64 loses integers
MAX_BATCH = 2**24
MAX_INPUT_TOKENS = 2**30
MAX_OUTPUT_TOKENS = 2**24
MAX_PAGE_TOKENS = 4096

WEIGHT_BITS = (16, 8, 4)
ACTIVATION_BITS = (16, 8)


@dataclass(frozen=True)
class Workload:
    """`batch` requests of `input_tokens` prompt and `output_tokens` generated tokens each.

    admission: "reserve" gives every request its final length from the start; "paged" lets staggered requests
    share memory page by page, at their mean size. `prefix_tokens` of the prompt are common to all requests.
    `activation_bits` 8: products with the weights run at the INT8 or FP8 peak, and need weights of 8 bits or less.
    `prompt_chunk_tokens` of a prompt are live at once, in memory (times do not depend on it). Without `kv_cache` each
    step runs the whole prefix. `cached_input_discount` prices a shared prefix as providers do (`usd_per_request`).
    """

    batch: int = 1
    input_tokens: int = 1024
    output_tokens: int = 1024
    admission: Literal["reserve", "paged"] = "reserve"
    page_tokens: int = 16
    prefix_tokens: int = 0
    weights_bits: int = 16
    dequant_path: Path | None = None
    #: auto: calibrated where the device has parameters of a software stack, else ideal
    model_kind: Literal["auto", "ideal", "calibrated"] = "auto"
    stack: str | None = None
    #: which tokens are stored and read, with parameters (dse/specs/tokens.py)
    tokens: str = "full"
    activation_bits: int = 16
    prompt_chunk_tokens: int = 1
    kv_cache: bool = True
    cached_input_discount: float | None = None

    def __post_init__(self) -> None:
        _whole("batch", self.batch, 1, MAX_BATCH)
        _whole("input", self.input_tokens, 1, MAX_INPUT_TOKENS)
        _whole("output", self.output_tokens, 1, MAX_OUTPUT_TOKENS)
        _whole("page", self.page_tokens, 1, MAX_PAGE_TOKENS)
        _whole("prefix", self.prefix_tokens, 0, self.input_tokens)
        _choice("admission", self.admission, ("reserve", "paged"))
        _choice("weights-bits", self.weights_bits, WEIGHT_BITS)
        _choice("activation-bits", self.activation_bits, ACTIVATION_BITS)
        if self.activation_bits < self.weights_bits:
            raise InputError(
                f"activation-bits = {self.activation_bits}: must be at least weights-bits = {self.weights_bits}: "
                f"add --weights-bits {self.activation_bits}"
            )
        _whole("prompt-chunk", self.prompt_chunk_tokens, 1, MAX_INPUT_TOKENS)
        if not self.kv_cache and self.prefix_tokens:
            raise InputError(
                f"prefix = {self.prefix_tokens}: without a KV cache no prefix is kept: leave it out, or keep the cache"
            )
        _share("cached-input-discount", self.cached_input_discount)
        if self.dequant_path is not None:
            _choice("dequant-path", self.dequant_path, ("engine", "fused", "materialised"))
        _choice("model-kind", self.model_kind, ("auto", "ideal", "calibrated"))
        if self.stack is not None and self.model_kind == "ideal":
            raise InputError(f"stack = {show(self.stack)}: the ideal model has no software stack: leave it out")

        parse(self.tokens)

    @property
    def token_policy(self) -> TokenPolicy:
        """Which tokens are stored and read."""
        return parse(self.tokens)

    @property
    def final_tokens(self) -> int:
        """Context of a request after its last token."""
        return self.input_tokens + self.output_tokens


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{name} = {show(value)}: must be a whole number from {low:,} to {high:,}")


def _share(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and 0 <= value <= 1):  # type: ignore[operator]
        raise InputError(f"{name} = {show(value)}: must be a share from 0 to 1, such as 0.5")


def _choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} = {show(value)}: must be one of {', '.join(map(str, choices))}")
