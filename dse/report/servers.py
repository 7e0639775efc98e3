"""Errors that ship, on measured servers and kernels: of the validation page, and as the page of accuracy."""

import io
from collections.abc import Iterator
from typing import Any

import pandas as pd

from dse import data
from dse.core.columns import Column, cells, percent
from dse.figures.export import web_page
from dse.specs import catalog
from dse.specs.engines import ENGINES
from dse.specs.releases import release_of
from dse.specs.stack import Spread
from dse.validate.serving import group_name

PAGE = "accuracy.html"

#: what the page calls the groups of column `by`
_WORDS = {
    "all": "all",
    "kind": "kind",
    "model": "model",
    "system": "system",
    "stack": "stack",
    "n_devices": "devices",
    "suspect": "suspect rows",
    "model left out": "model left out of the fit",
    "system left out": "system left out of the fit",
}


def table() -> pd.DataFrame:
    """The rows of data/serving.csv: errors by group as shares, measured times of which do not ship."""
    return pd.read_csv(io.StringIO(data.text("serving.csv")), dtype={"group": str})


#: columns of the page's table, in percent
COLUMNS = (
    Column("by", title="rows of", form=lambda row: _WORDS[row["by"]]),
    Column("group", title="which"),
    Column("predicted", title="number", form=","),
    percent("tpot_mean", "TPOT"),
    percent("tpot_p90", "90th percentile"),
    percent("tpot_bias", "median"),
    percent("tpot_inside", "in interval"),
    percent("tpot_width", "width"),
    percent("ttft_median", "TTFT, median"),
    percent("ttft_inside", "in its interval"),
    percent("ttft_width", "its width"),
    percent("kernels_mean", "kernels alone"),
    percent("naive_mean", "data sheet"),
)


def shown() -> list[list[str]]:
    """The heads and rows of the page; releases are left to the table's file."""
    servers = table()
    return cells(COLUMNS, servers[servers["by"].isin(list(_WORDS))].to_dict("records"))


def _percent(name: str, title: str, form: str = ".1f") -> Column:
    return Column(name, title=title, form=lambda row: percent_text(row[name], form))


def percent_text(share: float | None, form: str = ".1f") -> str:
    """A share as people read it, 8.6 % or -0.7 %; - for none."""
    return "-" if share is None or share != share else f"{100 * share:{form}} %"


#: columns of the page of accuracy; `unseen_`: by fits that saw no row of the group
ACCURACY = (
    Column("name", title="group"),
    Column("predicted", title="servers", form=","),
    _percent("tpot_mean", "TPOT: mean error"),
    _percent("tpot_p90", "9 of 10 within"),
    _percent("tpot_bias", "median", "+.1f"),
    _percent("tpot_inside", "in interval"),
    _percent("unseen_tpot_mean", "left out: mean error"),
    _percent("unseen_tpot_inside", "left out: in interval"),
    _percent("ttft_median", "TTFT: median error"),
    _percent("ttft_inside", "TTFT: in interval"),
)
#: groups of the page -> the rows of fits that saw none of the group
_UNSEEN = {"kind": "model left out", "system": "system left out", "model": "model left out"}
#: what servers are grouped by on the page of accuracy, in words
TITLES = {"kind": "Kind of model", "system": "Device", "stack": "Engine", "release": "Release", "model": "Model"}


def groups(by: str) -> list[dict[str, Any]]:
    """The rows of `table` that are grouped by `by`, each with its name and what fits without it say (`unseen_`)."""
    servers = table()
    unseen = servers[servers["by"] == _UNSEEN.get(by)].set_index("group").add_prefix("unseen_")
    rows = servers[servers["by"] == by].join(unseen, on="group").to_dict("records")
    named = [{**row, "name": group_name(by, str(row["group"]))} for row in rows]
    return sorted(named, key=lambda row: (row["name"].partition(" ")[0].lower(), release_of(row["group"]), row["name"]))


def columns(by: str) -> list[Column]:
    """The columns of `ACCURACY` that rows grouped by `by` have."""
    return [column for column in ACCURACY if by in _UNSEEN or not column.name.startswith("unseen_")]


def _spreads() -> Iterator[list[str]]:
    """The interval of measured over predicted of each engine and kind of models, by stacks and public benchmarks."""
    for stack, server in catalog.servers().items():
        fitted = [(f"{kind} models, none of whose rows were seen", of) for kind, of in server.left_out.items()]
        fitted += sorted((f"{model}, by its own rows too", of) for model, of in server.models.items())
        for kind, of in catalog.benchmarked(stack).items():
            where = f"releases {of.since} to before {of.until}, public benchmarks on {', '.join(of.rows)}"
            fitted.append((f"{kind} models, {where}", of.spread))
        for what, spread in fitted:
            yield [ENGINES[stack], what, f"{spread.n_points:,}", *_ends(spread)]


def _ends(spread: Spread) -> list[str]:
    pairs = (spread.low, spread.high), (spread.first_low, spread.first_high)
    return [f"{100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %" for low, high in pairs]


def _kernels() -> dict[str, list[list[str]]]:
    """Device -> errors of the fits to its kernels on rows held out, as `dse show` has them."""
    found: dict[str, list[list[str]]] = {}
    for name in catalog.device_files():
        if not catalog.calibration_file(name).is_file():
            continue
        device = catalog.device(name)
        fits = [(stack, *fit) for stack, spec in device.stacks.items() for fit in spec.fits().items()]
        errors = [(fit.held_out_error, fit.serving_error) for _, _, fit in fits]
        found[device.name] = [
            [ENGINES.get(stack, stack), part, f"{fit.n_points:,}", *map(percent_text, shares)]
            for (stack, part, fit), shares in zip(fits, errors, strict=True)
        ]
    return found


def page(answers: str, home: str = "") -> str:
    """The page of accuracy, beside the page `answers`: errors and coverage by device, engine, release and model."""
    servers = table()
    return web_page.render(
        "accuracy.html",
        "dse.report",
        title="How far off is it?",
        groups={title: cells(columns(by), groups(by)) for by, title in TITLES.items()},
        n_servers=int(servers[servers["by"] == "all"]["predicted"].iloc[0]),
        spreads=list(_spreads()),
        kernels=_kernels(),
        answers=answers,
        home=home,
        js_beside=True,
    )
