"""What is asked of a design: batch, lengths, admission, weight bits. Checked once, on entry."""

from dataclasses import dataclass
from typing import Literal

from dse.errors import InputError, show
from dse.specs import Path
from dse.token_policies import TokenPolicy, parse

#: largest batch, prompt and output that the tool accepts: generous, and far below where float64 loses integers
MAX_BATCH = 2**24
MAX_INPUT_TOKENS = 2**30
MAX_OUTPUT_TOKENS = 2**24
MAX_PAGE_TOKENS = 4096

WEIGHT_BITS = (16, 8, 4)


@dataclass(frozen=True)
class Workload:
    """`batch` requests of `input_tokens` prompt and `output_tokens` generated tokens each.

    admission: "reserve" gives every request its final length from the start; "paged" lets staggered requests
    share memory page by page, at their mean size. `prefix_tokens` of the prompt are common to all requests.
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
    #: which tokens are stored and read, with parameters (dse/token_policies.py)
    tokens: str = "full"

    def __post_init__(self) -> None:
        _whole("batch", self.batch, 1, MAX_BATCH)
        _whole("input", self.input_tokens, 1, MAX_INPUT_TOKENS)
        _whole("output", self.output_tokens, 1, MAX_OUTPUT_TOKENS)
        _whole("page", self.page_tokens, 1, MAX_PAGE_TOKENS)
        _whole("prefix", self.prefix_tokens, 0, self.input_tokens)
        _choice("admission", self.admission, ("reserve", "paged"))
        _choice("weights-bits", self.weights_bits, WEIGHT_BITS)
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


def _choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} = {show(value)}: must be one of {', '.join(map(str, choices))}")
