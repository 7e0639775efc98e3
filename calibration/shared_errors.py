"""Fit what errors of two predicted servers have in common, and how far releases lie apart by their age
(hwspecs/shared_errors.toml): `python -m calibration.shared_errors TABLE.csv ...`.

Pairs of the tables serve one model the same lengths at the same concurrency. Each server is predicted by a fit that its
model was left out of. Rows of the tables do not ship.
"""

import datetime
import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hwspecs
from calibration import host
from calibration.host import Features, Floats
from dse.calibrate.servers import ServerRow, is_suspect, read
from dse.core import files, toml
from dse.core.errors import InputError, clean
from dse.model.uncertainty import END_80, FREEDOM, Interval, joined
from dse.specs import releases

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


class AgedPairs(NamedTuple):
    """Pairs of servers of one model, device, software and format of weights: how far the later release's time per token
    lies from the earlier one's beyond what is predicted of both (in logarithms), weeks between their releases, how much
    each counts, and the model."""

    apart: Floats
    weeks: Floats
    counts: Floats
    models: NDArray[np.str_]

    def take(self, mask: NDArray[np.bool_]) -> "AgedPairs":
        """The pairs where `mask` is true."""
        return AgedPairs(self.apart[mask], self.weeks[mask], self.counts[mask], self.models[mask])


def released_on(row: ServerRow) -> datetime.date | None:
    """The day of a server's release, or the day it was measured on where it names none that is listed; None where
    neither is known."""
    known = releases.dates(row.stack)
    if row.release in known:
        return known[row.release]
    return datetime.date.fromisoformat(row.measured_on) if row.measured_on else None


def aged_pairs_of(rows: Features) -> AgedPairs:
    """The pairs of a table that differ in their release, or in their split alone, which is what pairs differ by at no
    age at all. Copies of one measurement are no pair."""
    rows = rows.take(np.array([not is_suspect(row) for row in rows.rows]))
    off = np.log(rows.measured_s / host.left_out(rows)[0])
    of_models, found = host.names_of(rows), []
    for places in both_differ(rows):
        days = [released_on(rows.rows[k]) for k in places]
        *_, is_engine, _, is_device, is_weights = differences(*(rows.rows[k] for k in places))
        is_copy = rows.measured_s[places[0]] == rows.measured_s[places[1]]
        if None in days or is_engine or is_device or is_weights or is_copy:
            continue
        (earlier, first), (later, second) = sorted((day, k) for day, k in zip(days, places, strict=True) if day)
        releases_of = [f"{rows.rows[k].system} {rows.rows[k].release}" for k in (first, second)]
        model = str(of_models[first])
        weeks = (later - earlier).days / releases.WEEK
        found.append((float(off[second] - off[first]), weeks, " ".join((model, *releases_of)), model))
    if not found:
        raise InputError("no two rows differ in their release alone: give rows of two releases of one server")
    count = Counter(name for *_, name, _ in found)
    apart, weeks, counts = np.array([(far, age, count[name] ** -0.5) for far, age, name, _ in found]).T
    return AgedPairs(apart, weeks, counts, np.array([model for *_, model in found]))


def aged_scale(pairs: AgedPairs, values: Floats) -> Floats:
    """Spread of each pair by (at no age, of a week): variances add, and that of age grows with the weeks."""
    scale: Floats = np.hypot(values[0], values[1] * np.sqrt(pairs.weeks))
    return scale


def fit_age(pairs: AgedPairs) -> Floats:
    """(spread at no age, spread of a week) that make pairs likeliest, differences being t-distributed."""
    from scipy.optimize import minimize

    best = minimize(lambda v: -aged_likelihood(pairs, v), (0.1, 0.05), bounds=[(0.005, 1.0), (0.0, 1.0)])
    return np.asarray(best.x)


def aged_likelihood(pairs: AgedPairs, values: Floats) -> float:
    """The logarithm of the likelihood of pairs."""
    from scipy.stats import t

    scale = aged_scale(pairs, values)
    return float((pairs.counts * (t.logpdf(pairs.apart / scale, FREEDOM) - np.log(scale))).sum())


def age_of(pairs: AgedPairs, source: str) -> dict[str, Any]:
    """What ships of ages, with the share of pairs of two releases that lie inside, each by a fit without its model."""
    values, inside, is_apart = fit_age(pairs), np.zeros(len(pairs.apart), bool), pairs.weeks > 0
    for model in sorted(set(pairs.models[is_apart].tolist())):
        of_model = pairs.models == model
        scale = aged_scale(pairs.take(of_model), fit_age(pairs.take(~of_model)))
        inside[of_model] = np.abs(pairs.apart[of_model]) <= END_80 * scale
    return {
        "week": float(f"{END_80 * values[1]:.2g}"),
        "most_weeks": float(f"{pairs.weeks.max():.1f}"),
        "inside": float(f"{np.average(inside[is_apart], weights=pairs.counts[is_apart]):.2f}"),
        "n_points": int(is_apart.sum()),
        "source": source,
    }


def main(argv: list[str]) -> None:
    """Fit tables and write what ships. Raises InputError without an argument."""
    if not argv:
        raise InputError("give the path of a table of measured servers, or of several")
    rows = host.features(row for path in argv for row in read(path))
    pairs, in_common, loads = pairs_of(rows)
    correlations, _ = fit(pairs)
    name = " ".join(clean(Path(path).name, 80) for path in argv)
    alike = "pairs of one model, device, software, load and lengths, each predicted without its model"
    age = age_of(aged_pairs_of(rows), f"{name}: {alike}; days of hwspecs/releases.toml")
    data = {
        **{name: float(f"{value:.2f}") for name, value in zip(DIFFERENCES, correlations, strict=True)},
        "load": float(f"{fit(loads)[0][0]:.2f}"),
        "first": float(f"{max(in_common, 0.0):.2f}"),
        "n_points": len(pairs.apart),
        "source": f"{name}: pairs of rows of aiconfigurator-core 0.12.0, silicon_sample.csv (Apache-2.0)",
    }
    data["age"] = age
    head = f"# Written by `python -m calibration.shared_errors {name}`; docs/explanation/model.md, How sure.\n"
    files.write(SHIPPED, (head + toml.dumps(data)).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
