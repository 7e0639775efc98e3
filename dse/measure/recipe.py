"""The settings of a synthetic cache: its shape and statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from dse.core.errors import InputError, show
from dse.core.field import NUMBER, NUMBERS, WHOLE, declarations, declared


@dataclass(frozen=True)
class Recipe:
    """Shape and statistics of a synthetic cache. All numbers are assumed.

    Ranges: one number for all layers or one a layer; by default they grow, key 1 + 0.25 layer, value 0.4 + 0.3 layer.
    """

    n_layers: int = declared(4, kind=WHOLE, name="layers", low=1, high=10_000)
    n_heads: int = declared(2, kind=WHOLE, name="heads", low=1, high=10_000)
    n_tokens: int = declared(320, kind=WHOLE, name="tokens", low=1, high=2**24)
    head_dim: int = declared(128, kind=WHOLE, low=2, high=4096)
    seed: int = declared(2025, kind=WHOLE, low=0, high=2**40)
    key_ranges: Sequence[float] = declared(
        (), kind=NUMBERS, help="Size of keys, one number or one a layer; default: growing.", metavar="A,B"
    )
    value_ranges: Sequence[float] = declared(
        (), kind=NUMBERS, help="Size of values, one number or one a layer; default: growing.", metavar="A,B"
    )
    #: the same for all tokens
    n_outlier_channels: int | None = declared(
        None,
        kind=WHOLE,
        name="outlier-channels",
        help="Key channels of a head with an offset; default: one in 32.",
        low=0,
        high=4096,
    )
    #: over the deviation of the other channels, less a bell-shaped part
    outlier_offset: float = declared(
        6.0, kind=NUMBER, help="That offset, in deviations.", metavar="N", low=-1000, high=1000
    )
    n_sinks: int = declared(
        4, kind=WHOLE, name="sinks", help="Tokens of low norm, the first two and others.", low=0, high=10_000
    )
    #: over that of other tokens
    sink_key: float = declared(0.1, kind=NUMBER, help="Size of their keys.", metavar="N", low=0, high=1000)
    sink_value: float = declared(0.3, kind=NUMBER, help="Size of their values.", metavar="N", low=0, high=1000)
    #: elements are stretched by 1 + tails * (|bell| - 1.5) where that is above 1
    tails: float = declared(2.0, kind=NUMBER, help="Weight of the tails; 0: a bell.", metavar="N", low=0, high=1000)
    n_queries: int = declared(0, kind=WHOLE, name="queries", help="Queries of the last tokens.", low=0, high=2**24)
    sink_pull: float = declared(
        0.0,
        kind=NUMBER,
        help="Attention scores of sinks above those of other tokens, in nats.",
        metavar="N",
        low=-50,
        high=50,
    )

    def __post_init__(self) -> None:
        for name, field in SETTINGS.items():
            most = {"n_queries": self.n_tokens, "n_outlier_channels": self.head_dim}.get(name, field.high)
            replace(field, high=most).check(getattr(self, name))
        for name in ("key_ranges", "value_ranges"):
            ranges = getattr(self, name)
            if len(ranges) not in (0, 1, self.n_layers) or not all(1e-4 <= value <= 1e3 for value in ranges):
                raise InputError(
                    f"{name} = {show(ranges)}: must be one number or one a layer ({self.n_layers}), 0.0001 to 1000"
                )

    def text(self) -> str:
        """The settings that differ from the defaults, with shape and seed."""
        always = ("n_layers", "n_heads", "n_tokens", "head_dim", "seed")
        return ", ".join(
            f"{f.name.removeprefix('n_')} {getattr(self, f.name)}"
            for f in fields(self)
            if f.name in always or getattr(self, f.name) != f.default
        )


#: the settings by name
SETTINGS = declarations(Recipe)
