"""The papers' experiments run again: NQKV Table 4 and Figures 8 and 9, Oaken Figure 3."""

import csv
from pathlib import Path

import pandas as pd
import pytest

from chart_checks import lies_inside_its_axes
from dse import data
from dse.core.columns import cells
from dse.figures import FIGURES
from dse.report import listing
from dse.report import papers as report_papers
from dse.specs import catalog
from dse.validate import papers as validate_papers
from dse.validate.claims.published import NQKV_TABLE_4
from dse.validate.papers import INT8_CACHE, NO_CACHE, NQKV_CACHE


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return report_papers.tables()


def test_table_4_by_hand(tables):
    table = tables["nqkv_table_4"]
    assert len(table) == 3 * len(NQKV_TABLE_4) == 36
    one = table[(table.model == "opt-6.7b") & (table.batch == 64) & (table.input_tokens == 512)].set_index("system")
    weights, tokens = 6_658_473_984, 64 * (512 + 338)
    logits = 58464 * 2  # 2 * 4096 + 50272 elements a token, FP16
    # INT8 keys and values: 2 * 32 * 4096 bytes a token, held twice, 14.3 GB each: more than the activations of prompts
    # of 512 tokens, which are gone by then
    int8 = weights + 2 * tokens * 2 * 32 * 4096
    assert 64 * 512 * logits < tokens * 2 * 32 * 4096
    assert one.loc[INT8_CACHE.name, "ours_bytes"] == int8
    # NQKV: 4 + 16 / 256 bits an element, and FP16 keys and values of one layer, 850 tokens padded to 864
    nqkv = weights + 2 * tokens * 2 * 32 * 4096 * 65 // 128 + 64 * 864 * 2 * 4096 * 2
    assert one.loc[NQKV_CACHE.name, "ours_bytes"] == nqkv
    # no cache: the activations of all 850 tokens
    assert one.loc[NO_CACHE.name, "ours_bytes"] == weights + tokens * logits
    assert one.loc[NO_CACHE.name, "published_ratio"] == pytest.approx(153.64 / 20.61)
    assert one.loc[INT8_CACHE.name, "published_bytes"] == pytest.approx(33.73e9)


def test_oakens_areas_are_those_of_its_table():
    path = Path(data.__file__).parent / "published.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "Oaken" and row["table"] == "Table 4"]
    for metric, scale in (("area_mm2", 1.0), ("area_ratio_percent", 100 / 3.971)):
        printed = {row["method"].replace(" ", "_"): float(row["value"]) for row in rows if row["metric"] == metric}
        for name in ("oaken-hbm", "oaken-lpddr"):
            ours = {module: scale * area.si for module, area in catalog.device(name).core_area.items()}
            assert ours == pytest.approx(printed, abs=0.02)  # printed 6.03 % of 0.239 / 3.971 = 6.019 %
    assert any("1.86 % of the core" in row["source"] for row in listing.show("oaken-hbm"))


def test_table_4_orders_as_printed(tables):
    table = tables["nqkv_table_4"]
    for system, above in ((NO_CACHE, True), (INT8_CACHE, False)):
        rows = table[(table.system == system.name)]
        for kind in ("published", "ideal", "calibrated"):
            ratios = rows[f"{kind}_ratio"].dropna()
            assert ((ratios > 1) == above).all()
    printed = table["published_bytes"].isna()
    assert printed.sum() == 1  # OPT-30B, batch 64, 512 tokens, with an INT8 cache


def test_peak_memory_is_within_a_factor_of_two_of_the_measured(tables):
    table = tables["nqkv_table_4"].dropna(subset=["published_bytes"])
    ratio = table["ours_bytes"] / table["published_bytes"]
    # without a cache measured ones hold what PyTorch's allocator keeps, and scores; with one, at OPT-30B, 32 prompts of
    # 128 tokens, less than twice the keys and values
    assert ratio.between(0.45, 1.31).all()
    with_cache = ratio[table["system"] != NO_CACHE.name]
    # keys and values held twice: the cell that is out of memory needs it, and 12.4 % are off (9.5 % where each was
    # counted once with the activations of prompts), 6.9 % should GB be GiB
    assert abs(with_cache - 1).mean() < 0.13
    assert abs(with_cache * 1e9 / 2**30 - 1).mean() < 0.08


def test_figures_8_and_9_mark_what_does_not_fit(tables):
    for name, column in (("nqkv_figure_8", "batch"), ("nqkv_figure_9", "input_tokens")):
        table = tables[name]
        limits = {}
        for system, own in table.groupby("system", sort=False):
            assert own["memory_bytes"].is_monotonic_increasing
            assert (own["fits"] == (own["memory_bytes"] <= own["capacity_bytes"])).all()
            assert set(own["fits"]) == {True, False}
            limits[system] = own[own["fits"]][column].max()
        assert list(limits.values()) == sorted(limits.values())  # FP16, SmoothQuant, NQKV
        chart = FIGURES[name].chart(table)
        crosses = [series for series in chart.panels[0].series if series.is_note]
        assert sum(len(series.x) for series in crosses) == (~table["fits"]).sum()


def test_figure_3_prefill_high_generation_low_attention_low(tables):
    table = tables["oaken_figure_3"].set_index(["batch", "phase", "name"])
    batches = sorted({batch for batch, _, _ in table.index})
    assert batches == list(validate_papers.UTILISATION_BATCHES)
    for batch in batches:
        compute = table["compute_utilisation"]
        assert compute[batch, "prefill", "all"] > 0.7
        assert compute[batch, "decode", "all"] < 0.1
        assert compute[batch, "decode", "attention"] < 0.01
    assert compute[32, "decode", "feed_forward"] > 20 * compute[32, "decode", "attention"]


def test_figures_are_drawn(tables, sketch):
    for name in report_papers.FIGURES:
        chart = FIGURES[name].chart(tables[name])
        assert sketch(chart).startswith(b"\x89PNG")
        lies_inside_its_axes(chart)


def test_the_page_shows_published_beside_ours(tables):
    _, *lines = cells(report_papers.TABLE_4, tables["nqkv_table_4"].to_dict("records"))
    assert len(lines) == 36
    shown = {cell for line in lines for cell in line}
    assert "out of memory" in shown
    assert "nan" not in shown
