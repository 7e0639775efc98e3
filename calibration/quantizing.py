"""Fit what quantizing activations in blocks adds to a product (hwspecs/benchmarked/kernels.toml): `python -m
calibration.quantizing TABLE.csv ...`.

Pairs of servers of one release differ in the format of their weights alone, one being in FP8 blocks: so many
microseconds a product change the ratio of their times, all else errs alike. Each model is left out once. Rows of the
tables do not ship.
"""

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from calibration import benchmarked
from calibration.host import robust
from dse.calibrate.servers import ServerRow, is_suspect, read
from dse.calibrate.solve import Floats
from dse.core import files, toml
from dse.core.errors import DseError, InputError
from dse.model import engine
from dse.specs import catalog

NAME, BLOCKS = "block_quantizing", "fp8_block"
#: the two starts at which times are taken, which are a line in it; the most that is tried: all in microseconds
NONE, SOME, MOST = 1e-6, 5.0, 40.0


class Pair(NamedTuple):
    """Two servers: the logarithm of what was measured of the first over the second, and their times predicted without
    the start and, a microsecond of it, more; in seconds."""

    model: str
    formats: str
    measured: float
    first: tuple[float, float]
    second: tuple[float, float]


def alike(rows: Iterable[ServerRow]) -> Iterator[tuple[ServerRow, ServerRow]]:
    """Yield the rows that differ in their weights alone, of which one is in FP8 blocks, inside of a named release."""
    groups = defaultdict(list)
    for row in rows:
        if row.spec and row.work and row.tpot_s and row.release and not row.reason and not is_suspect(row):
            work = row.work
            layout = (work.tp, work.pp, work.ep, work.dp_attention, work.input_tokens, work.output_tokens)
            groups[row.spec.name, row.system, row.stack, row.release, *layout, row.concurrency].append(row)
    for group in groups.values():
        for first, second in itertools.combinations(group, 2):
            codes = [row.work.weight_format.dense_code for row in (first, second) if row.work]
            if codes.count(BLOCKS) == 1:
                yield first, second


def pairs_of(rows: Sequence[ServerRow]) -> list[Pair]:
    """The pairs of a table whose servers can both be predicted. Raises InputError where there are none."""
    pairs, lines = [], {}
    for both in alike(rows):
        try:
            for row in both:
                if id(row) not in lines:
                    lines[id(row)] = _line(row)
        except DseError:
            continue
        first, second = both
        assert first.tpot_s is not None
        assert second.tpot_s is not None
        formats = " ".join(sorted(str(row.work.weights) for row in both if row.work))
        measured = math.log(first.tpot_s / second.tpot_s)
        pairs.append(Pair(first.spec.name if first.spec else "", formats, measured, *(lines[id(row)] for row in both)))
    if not pairs:
        raise InputError("no two rows of a release differ in their weights alone, one in FP8 blocks: give such rows")
    return pairs


def _line(row: ServerRow) -> tuple[float, float]:
    """Seconds per token without the start, and what a microsecond of it adds."""
    bare, more = (_tpot_s(row, microseconds) for microseconds in (NONE, SOME))
    return bare, (more - bare) / (SOME - NONE)


def _tpot_s(row: ServerRow, microseconds: float) -> float:
    kernels = catalog.unmeasured_kernels()
    number = kernels.block_quantizing.model_copy(update={"value": microseconds, "unit": "us"})
    changed = kernels.model_copy(update={NAME: number})
    with mock.patch.object(catalog, "unmeasured_kernels", return_value=changed):
        results = engine.evaluate(row.point())
    if results["tpot_s"] is None:
        raise InputError(str(results["infeasible_reason"]))
    return float(results["tpot_s"])


def off(pairs: Sequence[Pair], microseconds: float) -> Floats:
    """Logarithms of each pair's predicted ratio over its measured one."""
    return np.array(
        [math.log(_at(pair.first, microseconds) / _at(pair.second, microseconds)) - pair.measured for pair in pairs]
    )


def _at(line: tuple[float, float], microseconds: float) -> float:
    return line[0] + line[1] * microseconds


def fit(pairs: Sequence[Pair]) -> float:
    """The microseconds that leave least, robustly; pairs of one model and formats count as the root of their number."""
    from scipy.optimize import minimize_scalar

    names = [pair[:2] for pair in pairs]
    counts = np.array([names.count(name) ** -0.5 for name in names])
    best = minimize_scalar(
        lambda start: float((counts * robust(off(pairs, start)) ** 2).sum()), bounds=(0.0, MOST), method="bounded"
    )
    return float(best.x)


def left_out(pairs: Sequence[Pair]) -> tuple[Floats, list[float]]:
    """What each pair is off by a fit without its model, and those fits."""
    models = np.array([pair.model for pair in pairs])
    errors, fits = np.zeros(len(pairs)), []
    for model in sorted(set(models.tolist())):
        of_model = models == model
        others = [pair for pair in pairs if pair.model != model]
        if others:
            fits.append(fit(others))
            errors[of_model] = off([pair for pair in pairs if pair.model == model], fits[-1])
    return errors, fits


def number_of(pairs: Sequence[Pair]) -> dict[str, Any]:
    """The number as its file has it. Raises InputError for pairs of one model, which none is left out of."""
    value, (errors, fits) = fit(pairs), left_out(pairs)
    if not fits:
        raise InputError(f"all pairs are of {pairs[0].model}: give rows of two models or more")
    before, after = (100 * float(np.abs(values).mean()) for values in (off(pairs, 0.0), errors))
    n_models = len({pair.model for pair in pairs})
    said = (
        f"whole_steps.csv of aiconfigurator-core 0.12.0 (Apache-2.0): {len(pairs)} pairs of {n_models} models that "
        f"differ in weights alone, {min(fits):.1f} to {max(fits):.1f} as models are left out; mean error of their "
        f"ratio on those {after:.1f} % ({before:.1f} without)"
    )
    return {"value": float(f"{value:.2g}"), "unit": "us", "source": said, "kind": "derived"}


def main(argv: list[str]) -> None:
    """Fit the tables together and write what ships. Raises InputError without a table."""
    if not argv:
        raise InputError("give the paths of tables of measured servers")
    number = number_of(pairs_of([row for path in argv for row in read(path)]))
    block = benchmarked.shipped()["kernels"] | {NAME: number}
    files.write(benchmarked.FOLDER / "kernels.toml", (benchmarked.HEAD + toml.dumps(block)).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
