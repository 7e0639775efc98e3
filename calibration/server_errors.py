"""Write the errors on measured servers that ship (dse/data/serving.csv): `python -m
calibration.server_errors TABLE.csv`.

What `dse validate serving` says of a table, but for servers that draft, and the same for fits that saw no row of a
model, or of a system. Rows of the table do not ship.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration import host
from calibration.host import Features
from dse.calibrate.servers import DRAFTS, is_suspect, read
from dse.core import files
from dse.core.errors import InputError
from dse.validate import serving

SHIPPED = Path(serving.__file__).parents[1] / "data" / "serving.csv"
#: what rows of fits that did not see a group are called in column `by`
LEFT_OUT = ("model left out", "system left out")


def left_out_errors(rows: Features) -> list[dict[str, Any]]:
    """Errors by fits that saw no row of the model, or of the system, as `dse.validate.serving.errors` gives others.

    An interval is that of the rows of all other groups of the kind, each left out as well. Predictions are at the
    number of requests that decoded, as measured.
    """
    rows = rows.take(np.array([not is_suspect(row) for row in rows.rows]))
    errors, stacks = [], np.array([row.stack for row in rows.rows])
    for by, groups in zip(LEFT_OUT, (host.names_of(rows), np.array([row.system for row in rows.rows])), strict=True):
        if len(set(groups.tolist())) < 2:
            continue
        tokens_s, firsts_s = _without(rows, groups)
        tpot, ttft = (
            _bounded(rows.is_mixture, stacks, groups, measured, ours)
            for measured, ours in ((rows.measured_s, tokens_s), (rows.first_measured_s, firsts_s))
        )
        kinds = np.where(rows.is_mixture, "mixture", "dense")
        for labels in (kinds, groups):
            for name in sorted(set(labels.tolist())):
                mask = labels == name
                errors.append(
                    {
                        "by": by,
                        "group": name,
                        "rows": int(mask.sum()),
                        "predicted": int(mask.sum()),
                        **_compared("tpot", rows.measured_s[mask], tpot[mask]),
                        **_compared("ttft", rows.first_measured_s[mask], ttft[mask]),
                        "rate_mean": None,
                        "naive_mean": None,
                        "kernels_mean": None,
                    }
                )
    return errors


def _without(rows: Features, groups: NDArray[np.str_]) -> tuple[host.Floats, host.Floats]:
    """Times per output token, and to the first, of each row by fits to the rows of other groups."""
    tokens_s, firsts_s = np.empty(len(rows.rows)), np.empty(len(rows.rows))
    for name in sorted(set(groups.tolist())):
        mask = groups == name
        tokens_s[mask], firsts_s[mask] = host.fit_all(rows.take(~mask)).predict(rows.take(mask))
    return tokens_s, firsts_s


def _bounded(
    is_mixture: NDArray[np.bool_],
    stacks: NDArray[np.str_],
    groups: NDArray[np.str_],
    measured: host.Floats,
    ours: host.Floats,
) -> NDArray[np.float64]:
    """(prediction, low, high) of each row: bounds from measured over predicted in other groups of the kind, and of the
    kind on the stack where these lie further out, as a server's file has them of a model that is not in it."""
    ratio = measured / ours
    bounds = np.column_stack((ours, ours, ours))
    for name, kind, stack in sorted(set(zip(groups.tolist(), is_mixture.tolist(), stacks.tolist(), strict=True))):
        mask = (groups == name) & (is_mixture == kind) & (stacks == stack)
        others = (groups != name) & (is_mixture == kind) & np.isfinite(ratio)
        near = others & (stacks == stack)
        if others.any():
            every = [others, *([near] if near.sum() >= host.FEWEST_ROWS else [])]
            ends = np.array([np.quantile(ratio[ratio_mask], host.UNSEEN) for ratio_mask in every])
            bounds[mask, 1:] = ours[mask, None] * (ends[:, 0].min(), ends[:, 1].max())
    return bounds


def _compared(name: str, measured: host.Floats, ours: NDArray[np.float64]) -> dict[str, Any]:
    pairs = [(float(m), tuple(map(float, three))) for m, three in zip(measured, ours, strict=True) if np.isfinite(m)]
    return {f"{name}_{key}": value for key, value in serving.compare(pairs).items()}


def main(argv: list[str]) -> None:
    """Judge a table and write what ships. Raises InputError without exactly one argument."""
    if len(argv) != 1:
        raise InputError("give the path of a table of measured servers")
    judged = [server for server in serving.run(argv[0]) if server.row.reason != DRAFTS]
    errors = serving.errors(judged) + left_out_errors(host.features(read(argv[0])))
    files.write(SHIPPED, serving.errors_csv(errors).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
