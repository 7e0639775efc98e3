"""Keys and values in host memory: what is fetched over the link, against computing the same tokens again."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from dse.model import peak_memory, step
from dse.model.kv_bytes import sequence_bits
from dse.model.point import Point

#: longest beginning of a sequence that is looked at
MOST_TOKENS = 2**20


@dataclass(frozen=True)
class Offload:
    """Results of `kv_offload` for a design, on each device; times are means of a decode step of the largest wave."""

    #: of the whole batch at its final length
    host_bytes: int
    #: fetched a step, and by how much the step waits for it
    link_bytes: float
    link_s: float
    wait_s: float
    #: seconds to compute the same tokens again in place of fetching them: the beginning of each sequence, as a prompt
    again_s: float
    #: bytes a second over the link from which on fetching takes less than that
    even_bytes_per_s: float
    #: lengths of a beginning, up to MOST_TOKENS, that are computed again in less time than they are fetched in
    computed_sooner: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON has them."""
        return asdict(self)


class Beginning:
    """The first tokens of one request of a design, fetched from host memory or computed again.

    They arrive `start_s` and their bytes over the link after they are asked for: that of the device, or
    `bytes_per_s`.
    """

    def __init__(self, point: Point, bytes_per_s: float | None = None, start_s: float = 0.0) -> None:
        self.point, self.start_s = point, start_s
        self.bytes_per_s = bytes_per_s or point.design.device.host_bytes_per_s

    def n_bytes(self, n_tokens: int) -> float:
        """Bytes of keys and values of one device."""
        point = self.point
        return float(sequence_bits(point.design, point.made.limits, n_tokens)) / point.unit

    def again_s(self, n_tokens: int) -> float:
        """Seconds to compute them as a prompt alone."""
        work = replace(self.point.work, batch=1, input_tokens=n_tokens, output_tokens=1, kv_offload=0.0)
        alone = Point(self.point.device, self.point.plan, replace(work, max_model_len=None))
        return float(step.one_prompt_s(alone.design, alone.terms))

    def is_computed_sooner(self, n_tokens: int) -> bool:
        """Whether computing takes less time than fetching."""
        return self.again_s(n_tokens) < self.start_s + self.n_bytes(n_tokens) / self.bytes_per_s

    def fetched_from(self) -> int | None:
        """The crossing: the first length that is fetched sooner; None where none up to MOST_TOKENS is."""
        first, last = next(self.computed_sooner(), (1, 0))
        return 1 if first > 1 else last + 1 if last < MOST_TOKENS else None

    def computed_sooner(self) -> Iterator[tuple[int, int]]:
        """Stretches of lengths that are computed sooner: sought at powers of two, their ends by halving."""
        first, before, was_sooner = 1, 1, self.is_computed_sooner(1)
        for length in (2**k for k in range(1, MOST_TOKENS.bit_length())):
            is_sooner = self.is_computed_sooner(length)
            if is_sooner != was_sooner:
                turn = self._turn(before, length, is_sooner)
                if was_sooner:
                    yield first, turn - 1
                first = turn
            before, was_sooner = length, is_sooner
        if was_sooner:
            yield first, MOST_TOKENS

    def _turn(self, low: int, high: int, is_sooner: bool) -> int:
        """First length up to `high` with its answer, where `low` has the other."""
        while high - low > 1:
            middle = (low + high) // 2
            if self.is_computed_sooner(middle) == is_sooner:
                high = middle
            else:
                low = middle
        return high


def offload_of(point: Point) -> Offload | None:
    """The part of a design's keys and values lies in host memory; None where none does, or no request fits."""
    share = point.design.load.offloaded_permille / 1000
    if share == 0 or not point.max_batch:
        return None
    design, made, run = point.design, point.made, point.largest_wave
    own_bits = made.final_bits - made.final_shared_bits
    away_bits = own_bits - peak_memory.on_device(design, own_bits)
    link_bytes = share * run.attention_bytes
    link_s = link_bytes / design.device.host_bytes_per_s
    beginning = Beginning(point)
    n_tokens = max(round(share * (design.input_tokens + (design.output_tokens + 1) / 2)), 1)
    again_s = beginning.again_s(n_tokens)
    return Offload(
        host_bytes=run.n * away_bits // point.unit,
        link_bytes=link_bytes,
        link_s=link_s,
        wait_s=run.wave.collective_s - step.exchanges_s(design, run.n, 0),
        again_s=run.n * again_s,
        even_bytes_per_s=beginning.n_bytes(n_tokens) / again_s,
        computed_sooner=tuple(beginning.computed_sooner()),
    )
