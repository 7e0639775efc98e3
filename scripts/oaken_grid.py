"""Measures Oaken's parameters on the sample that ships (oaken_grid.csv): `python -m scripts.oaken_grid FOLDER`.

For every set of parameters thresholds are profiled on the calibration sample, then the sample that ships is quantized
by the bit-exact kernel and attended to by its queries.
"""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dse import quantizers
from dse.measure import errors, kernels
from dse.measure.kernels import Side
from dse.measure.lab import Held, hold
from dse.quantizers.methods import oaken
from dse.specs.oaken_grid import SHIPPED
from scripts.ship_sample import CALIBRATION, DUMP, N_QUERIES

DATA = Path(__file__).parents[1] / "dse" / "data"

#: shares of the outer and inner group in percent, what they may sum to, groups beside these, and bits of an outlier.
#: An empty group (inner = 0) has no thresholds to profile: the kernel takes fewer groups instead, 10/90 here.
OUTER, INNER, MOST, GROUPS, BITS = range(1, 17), range(1, 16), 20, ("10/90", "4/90/6", "2/2/90/6"), (4, 5)


#: columns of the table
FIELDS = (
    "quantizer",
    "which",
    "n_heads",
    "head_dim",
    "n_elements",
    "n_outliers",
    "stored_bytes",
    "squared_error",
    "squared_signal",
    "squared_output",
    "squared_output_error",
    "squared_output_error_both",
)


def names() -> list[str]:
    """The sets of parameters, as canonical names of quantizers."""
    shares = [f"outer={o / 100},inner={i / 100}" for o in OUTER for i in INNER if o + i <= MOST]
    sets = [*shares, *(f"groups={groups}" for groups in GROUPS)]
    return [quantizers.parse(f"oaken:{one},outlier_bits={bits}").name for one in sets for bits in BITS]


def entry(name: str, sample: Held, calibration: Held) -> list[dict[str, Any]]:
    """Rows of one set of parameters, for keys and for values: sums over the layers. Columns as `FIELDS`."""
    spec = quantizers.parse(name)
    profiler = oaken.profiler(dict(spec.values))
    for index, own in calibration.tensors.items():
        for side, tensor in own.items():
            profiler.add(index, side, tensor)
    settings = kernels.Settings(thresholds=profiler.thresholds())
    sides: tuple[Side, ...] = ("key", "value")
    parts: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for index, tensors in sample.tensors.items():
        outcomes = kernels.quantize(spec, index, dict(tensors), settings)
        seen = {side: outcome.seen for side, outcome in outcomes.items()}
        heads = list(
            errors.head_rows(tensors, seen, sample.queries[index], sample.about, index, errors.Queries(N_QUERIES))
        )
        totals = {one: errors.pooled([row for row in heads if row["side"] == one]) for one in (*sides, "both")}
        for side in sides:
            parts[side].append(
                {
                    **totals[side],
                    "n_outliers": outcomes[side].counts["n_outliers"],
                    "stored_bytes": outcomes[side].packed.stored_bytes,
                    "squared_output_error_both": totals["both"]["squared_output_error"],
                }
            )
    _, n_heads, _, head_dim = sample.tensors[0]["key"].shape
    return [
        {
            "quantizer": spec.name,
            "which": side,
            "n_heads": n_heads,
            "head_dim": head_dim,
            **{name: sum(part[name] for part in parts[side]) for name in ("n_elements", "n_outliers", "stored_bytes")},
            **{name: math.fsum(part[name] for part in parts[side]) for name in FIELDS if name.startswith("squared")},
        }
        for side in sides
    ]


def samples() -> tuple[Held, Held]:
    """The sample that ships, and the one that thresholds are profiled on."""
    shipped, calibration = (hold(DATA / name) for name in (DUMP, CALIBRATION))
    return shipped, calibration


def _table(rows: Iterator[dict[str, Any]]) -> bytes:
    content = io.StringIO()
    writer = csv.DictWriter(content, FIELDS, lineterminator="\n")
    writer.writeheader()
    for row in rows:  # nine digits: the last ones of a float64 sum differ between processors
        writer.writerow({name: f"{x:.9g}" if isinstance(x, float) else x for name, x in row.items()})
    return content.getvalue().encode()


def write(folder: str, progress: kernels.Progress) -> None:
    """Measure the grid and write it into `folder`."""
    from dse.core import files

    sample, calibration = samples()
    with progress(names(), label="measuring", length=len(names())) as shown:
        content = _table(row for name in shown for row in entry(name, sample, calibration))
    files.write(Path(folder) / SHIPPED, content)


if __name__ == "__main__":
    import sys

    import click

    write(sys.argv[1], lambda items, label, length: click.progressbar(items, length, label, file=sys.stderr))
