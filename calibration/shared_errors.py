"""Fit what errors of two predicted servers have in common (hwspecs/shared_errors.toml): `python -m
calibration.shared_errors TABLE.csv`.

Pairs of the table serve one model the same lengths at the same concurrency. Each server is predicted by a fit that its
model was left out of. Rows of the table do not ship.
"""

import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hwspecs
from calibration import host
from calibration.host import Features, Floats
from dse.calibrate.servers import ServerRow, is_suspect, read
from dse.core import files, toml
from dse.core.errors import InputError, clean
from dse.model.uncertainty import END_80, FREEDOM, Interval, joined

SHIPPED = Path(hwspecs.__file__).parent / "shared_errors.toml"
#: things that servers of a pair differ in, in the order of the parameters
DIFFERENCES = ("split", "groups", "engine", "release", "device", "weights")
#: most that two servers' errors may have in common, and where a search starts
MOST, STARTS = 0.97, ((0.7, 0.7, 0.2, 0.4, 0.5, 0.5), (0.3,) * 6)


class Pairs(NamedTuple):
    """Pairs of servers: how far the two lie apart beyond what both intervals' middles say, the halves of those (all in
    logarithms), in what they differ, and how much each pair counts."""

    apart: Floats
    first_half: Floats
    second_half: Floats
    is_different: Floats
    counts: Floats


def differences(first: ServerRow, second: ServerRow) -> tuple[bool, ...]:
    """What two servers differ in, as DIFFERENCES has it."""
    a, b = first.work, second.work
    assert a is not None
    assert b is not None
    is_other = first.stack != second.stack
    return (
        (a.tp, a.pp) != (b.tp, b.pp),
        (a.ep, a.dp_attention) != (b.ep, b.dp_attention),
        is_other,
        not is_other and first.release != second.release,
        first.system != second.system,
        str(a.weights) != str(b.weights),
    )


def both_differ(rows: Features) -> Iterator[tuple[int, int]]:
    """The places of all pairs of servers of one model, lengths and concurrency that differ in anything."""
    groups = defaultdict(list)
    for i, row in enumerate(rows.rows):
        if row.work and row.spec and np.isfinite(rows.first_measured_s[i]):
            lengths = row.work.input_tokens, row.work.output_tokens
            groups[row.spec.name, lengths, row.concurrency].append(i)
    for places in groups.values():
        for i, j in itertools.combinations(places, 2):
            if any(differences(rows.rows[i], rows.rows[j])):
                yield i, j


def pairs_of(rows: Features) -> tuple[Pairs, float, Pairs]:
    """The pairs of a table, the correlation of the errors of a server's two times, and pairs of one server's times per
    token at two loads or lengths.

    Pairs of two deployments count as the root of their number: they err much alike at all lengths and loads.
    """
    rows = rows.take(np.array([not is_suspect(row) for row in rows.rows]))
    tokens_s, firsts_s = host.left_out(rows)
    off, first_off = np.log(rows.measured_s / tokens_s), np.log(rows.first_measured_s / firsts_s)
    known = np.isfinite(first_off)
    in_common = float(np.corrcoef(off[known], first_off[known])[0, 1])
    spreads = {stack: host.spreads(rows, tokens_s, firsts_s, stack) for stack in sorted({r.stack for r in rows.rows})}
    error, middle, half = (np.zeros(len(rows.rows)) for _ in range(3))
    token_middle, token_half = (np.zeros(len(rows.rows)) for _ in range(2))
    for i, row in enumerate(rows.rows):
        assert row.work is not None
        assert row.spec is not None
        of_stack = spreads[row.stack]
        seen = of_stack.models.get(row.spec.name) or of_stack.left_out["mixture" if rows.is_mixture[i] else "dense"]
        decode_s = row.work.output_tokens * tokens_s[i]
        share = decode_s / (decode_s + firsts_s[i])
        tokens, first = (
            Interval(seen[low], seen[high], "") for low, high in (("low", "high"), ("first_low", "first_high"))
        )
        middle[i], half[i] = joined(tokens, first, share, in_common).logs()
        token_middle[i], token_half[i] = tokens.logs()
        measured_s = row.work.output_tokens * rows.measured_s[i] + rows.first_measured_s[i]
        error[i] = math.log(measured_s / (decode_s + firsts_s[i]))
    places = list(both_differ(rows))
    if not places:
        raise InputError("no two rows serve one model the same lengths at one concurrency: give such rows")
    i, j = np.array(places).T
    deployments = [tuple(sorted((_deployment(rows.rows[a]), _deployment(rows.rows[b])))) for a, b in places]
    count = Counter(deployments)
    loads = _loads(rows, off - token_middle, token_half)
    pairs = Pairs(
        apart=(error[i] - middle[i]) - (error[j] - middle[j]),
        first_half=half[i],
        second_half=half[j],
        is_different=np.array([differences(rows.rows[a], rows.rows[b]) for a, b in places]),
        counts=np.array([count[name] ** -0.5 for name in deployments]),
    )
    return pairs, in_common, loads


def _loads(rows: Features, error: Floats, half: Floats) -> Pairs:
    """All pairs of rows of one deployment, which differ in load and lengths alone; those of one deployment count as the
    root of their number."""
    groups = defaultdict(list)
    for i, row in enumerate(rows.rows):
        if row.work and row.spec:
            groups[_deployment(row)].append(i)
    places = [(i, j, len(group)) for group in groups.values() for i, j in itertools.combinations(group, 2)]
    firsts, seconds, n = np.array(places, dtype=int).reshape(-1, 3).T
    return Pairs(
        apart=error[firsts] - error[seconds],
        first_half=half[firsts],
        second_half=half[seconds],
        is_different=np.ones((len(places), 1)),
        counts=(n * (n - 1) / 2) ** -0.5,
    )


def _deployment(row: ServerRow) -> str:
    assert row.work is not None
    work = row.work
    layout = (work.tp, work.pp, work.ep, work.dp_attention)
    return " ".join(map(str, (row.model, row.system, row.stack, row.release, work.weights, *layout)))


def halves(pairs: Pairs, correlations: Floats) -> Floats:
    """Half the width of the 80 % interval of each pair's difference, in logarithms."""
    common = np.where(pairs.is_different, correlations, 1.0).prod(axis=1)
    a, b = pairs.first_half, pairs.second_half
    half_width: Floats = np.sqrt(a**2 + b**2 - 2 * common * a * b)
    return half_width


def fit(pairs: Pairs, freedom: float = FREEDOM) -> tuple[Floats, float]:
    """The correlations of DIFFERENCES, or of loads alone, that make the pairs likeliest, differences being
    t-distributed, and the logarithm of that likelihood."""
    from scipy.optimize import minimize
    from scipy.stats import t

    end = END_80 if freedom == FREEDOM else float(t.ppf(0.9, freedom))

    def unlikely(correlations: Floats) -> float:
        scale = halves(pairs, correlations) / end
        return -float((pairs.counts * (t.logpdf(pairs.apart / scale, freedom) - np.log(scale))).sum())

    n = pairs.is_different.shape[1]
    tried = [minimize(unlikely, start[:n], bounds=[(0.0, MOST)] * n) for start in STARTS]
    best = min(tried, key=lambda attempt: attempt.fun)
    return np.asarray(best.x), -float(best.fun)


def main(argv: list[str]) -> None:
    """Fit a table and write what ships. Raises InputError without exactly one argument."""
    if len(argv) != 1:
        raise InputError("give the path of a table of measured servers")
    pairs, in_common, loads = pairs_of(host.features(read(argv[0])))
    correlations, _ = fit(pairs)
    name = clean(Path(argv[0]).name, 80)
    data = {
        **{name: float(f"{value:.2f}") for name, value in zip(DIFFERENCES, correlations, strict=True)},
        "load": float(f"{fit(loads)[0][0]:.2f}"),
        "first": float(f"{max(in_common, 0.0):.2f}"),
        "n_points": len(pairs.apart),
        "source": f"{name}: pairs of rows of aiconfigurator-core 0.12.0, silicon_sample.csv (Apache-2.0)",
    }
    head = f"# Written by `python -m calibration.shared_errors {name}`; docs/explanation/model.md, How sure.\n"
    files.write(SHIPPED, (head + toml.dumps(data)).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
