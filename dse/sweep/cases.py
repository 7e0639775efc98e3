"""Cases of a compiled sweep: designs whose device rates, batch and lengths are open."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dse.core.errors import InputError, LimitError
from dse.model import many
from dse.model.point import Point
from dse.model.records import Design
from dse.sweep.columns import FEASIBLE, NOT_ALLOWED
from dse.sweep.designs import Designs

#: fields of a workload that are given by point
BY_POINT = ("batch", "input_tokens", "output_tokens")
#: results that the kernel or a column for all points of a sweep gives; any other is the same for all points of a case
OF_POINT = frozenset(
    {
        *many.COLUMNS,
        *BY_POINT,
        "capacity_bytes",
        "fits_whole_batch",
        "effective_bandwidth_bytes_per_s",
        "effective_capacity_bytes",
        "assumptions",
    }
)


@dataclass(frozen=True)
class OpenDesign:
    """A design whose device, batch and lengths are open. `state`: FEASIBLE, or why it is not evaluated here."""

    state: int
    point: Point | None = None
    design: Design | None = None
    #: results by name that all of its points share
    results: Any = None


def case_of(designs: Designs, row: Sequence[Any], keep: Sequence[str]) -> OpenDesign:
    """The case of a point, `row` of `Designs.rows`; those of `keep` that all of its points share are in `results`."""
    try:
        point = Point(*designs.at(*row))
        design = point.design
        many.tables_of([design], [design.device])  # OverflowError beyond int64
        results = point.lowered.results
        return OpenDesign(
            FEASIBLE,
            point,
            design,
            {name: results[name] for name in (*keep, "effective_bits", "runs") if name not in OF_POINT},
        )
    except InputError:
        return OpenDesign(NOT_ALLOWED)
    except (LimitError, OverflowError):  # row by row finds and says the same
        return OpenDesign(many.LEFT)
