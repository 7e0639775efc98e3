"""The report: which files it writes, that they are whole and need no network, and how it refuses."""

import contextlib
import csv
import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import browser
import dse
from dse.core import files
from dse.core.errors import InputError, LimitError, OutputError
from dse.figures import FIGURES, REPORT
from dse.figures.drawing import to_matplotlib
from dse.figures.export import image
from dse.model import uncertainty
from dse.operations.pages import WriteReport
from dse.questions import systems, tables
from dse.report import formats as report_formats
from dse.report import gains as report_gains
from dse.report import page, present
from dse.report import throughput as report

_SMALL = {"devices": ["a100-80gb"], "models": ["llama2-7b"], "quantizers": ["fp16", "qserve"], "batches": [16, 256]}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, pictures) -> Path:
    """A small report; all its pictures are that of one figure, since tests/figures looks at each."""
    folder = tmp_path_factory.mktemp("report") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(image, "images", lambda *_: pictures("bit_ledger"))
        index = dse.report(str(folder), **_SMALL)
    assert index == str(folder / "index.html")
    return folder


@pytest.mark.slow
@pytest.mark.browser
@browser.needs_browser
def test_every_figure_of_the_page_is_drawn(written):
    with browser.chromium() as opened:
        page, errors = opened.new_page(), []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((written / "index.html").as_uri())
        for figure in page.locator(".plotly-graph-div").all():
            browser.sync_api.expect(figure.locator(".main-svg").first).to_be_attached()
        assert page.locator(".plotly-graph-div").count() >= len(REPORT)
        assert errors == []


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_files(written: Path):
    figures = {f"figures/{name}.{kind}" for name in [*REPORT, "formats"] for kind in ("html", "png", "svg", "pdf")}
    names = (
        "capacity",
        "lengths",
        "weights",
        "breakdown",
        "ledger",
        "roofline",
        "tokens",
        "traffic",
        "traffic_lengths",
        "formats",
    )
    others = {f"tables/{name}.{kind}" for name in names for kind in ("csv", "parquet")}
    page = {"index.html", "report.csv", "report.parquet", "figures/plotly.min.js"}
    assert _files(written) == figures | others | page
    for name in figures:
        head = {"html": b"<!DOCTYPE html>", "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF-"}[
            name.rpartition(".")[2]
        ]
        assert (written / name).read_bytes().startswith(head)


def _fetches(text: str) -> list[str]:
    """What a browser would load by itself: sources, style sheets, imports."""
    text = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    return re.findall(r"<(?:script|img|iframe|source|embed)[^>]*\bsrc=\"([^\"]*)|<link[^>]*href=\"([^\"]*)", text)


def test_pages_need_no_network(written: Path):
    page = (written / "index.html").read_text()
    assert _fetches(page) == []
    assert "default-src 'none'" in page
    assert page.count("plotly.js v") == 1
    for name in REPORT:
        alone = (written / "figures" / f"{name}.html").read_text()
        assert _fetches(alone) == [("plotly.min.js", "")]
        assert len(alone) < 1_000_000
    for link in re.findall(r'<a href="([^"#]+)"', re.sub(r"<script.*?</script>", "", page, flags=re.S)):
        assert (written / link).is_file(), link


def test_page_says_what_it_rests_on(written: Path):
    page = (written / "index.html").read_text()
    for text in (
        "prefers-color-scheme",
        "dse report --out",
        "over A100-80GB fp16",
        "Oaken (ISCA 2025), Table 1",
        "drawn by matplotlib",
        "Rests on assumed numbers",
        "throughput (tok/s)",
        "KV (GB)",
    ):
        assert text in page
    assert not re.search(r">\s*(nan|None|&lt;NA&gt;)\s*<", page)


def test_it_begins_with_which_format_pays(written: Path):
    page = (written / "index.html").read_text()
    first = re.findall(r"<h2>(.*?)</h2>", page)[0]
    assert first == "Which KV format pays on A100-80GB?"
    table = pd.read_csv(written / "tables" / "formats.csv")
    assert table["format"].iloc[0] == "fp16"
    assert set(table["model"]) == {"llama2-7b"}
    assert "kernels assumed, not measured" in page


def test_a_report_without_that_answer_says_why(monkeypatch: pytest.MonkeyPatch):
    def refused(*_, **__):
        raise InputError("not this one")

    monkeypatch.setattr(report_formats, "formats", refused)
    asked = report.ask(**_SMALL)
    assert report_formats.answer(asked) == (None, "not this one")


def test_by_default_it_is_about_a_model_and_a_device_of_today():
    found, _ = report_formats.answer(report.ask())
    assert (found.device, found.model, found.batch, found.input_tokens) == ("H200", "qwen3-32b", 64, 8192)
    assert found.best.name == "fp8"


def test_tables_round_trip(written: Path):
    own = pd.read_parquet(written / "report.parquet")
    names = (_SMALL["devices"], _SMALL["models"], _SMALL["quantizers"])
    expected = dse.grid(*names, batch=[16, 256], admission="paged", memory="paper")
    pd.testing.assert_frame_equal(own.drop(columns="system"), expected, check_exact=True)
    text = list(csv.DictReader(io.StringIO((written / "report.csv").read_text())))
    for column in expected:
        if pd.api.types.is_numeric_dtype(expected[column]) and expected[column].dtype != bool:
            values = [float(row[column]) if row[column] else None for row in text]
            assert values == [None if pd.isna(v) else v for v in expected[column]]
    units = {field.name: (field.metadata or {}).get(b"unit") for field in pq.read_schema(written / "report.parquet")}
    assert units["throughput_tokens_per_s"] == b"tok/s"


def test_summary_speedup(written: Path):
    table = pd.read_parquet(written / "report.parquet")
    rows = table[table["batch"] == 256].set_index("quantizer", drop=False)
    gain = uncertainty.gain(rows.loc["qserve"], rows.loc["fp16"])
    assert f">{gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f})" in (written / "index.html").read_text()


@pytest.mark.slow
def test_progress_sees_points_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "REPORT", {"bit_ledger": FIGURES["bit_ledger"]})
    monkeypatch.setattr(page, "REPORT", {"bit_ledger": FIGURES["bit_ledger"]})
    seen: dict[str, list[str]] = {}

    @contextlib.contextmanager
    def progress(items, label, length):
        assert len(items) == length
        seen[label] = []
        yield (seen[label].append(str(item)) or item for item in items)

    report.write(str(tmp_path / "r"), "dse report", report.ask(**_SMALL), progress)
    assert seen["figures"] == ["bit_ledger"]
    assert len(seen["points"]) == 4 + 2 + 12 + 8 + 4 + 80  # the last: 10 designs of tokens and bits at 8 lengths
    assert seen["points"][0] == "A100-80GB fp16, llama2-7b"


@pytest.mark.parametrize("tail", ["", "below/it"])
def test_a_file_in_the_way(tmp_path: Path, tail: str):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="--out"):
        dse.report(str(tmp_path / "file" / tail), **_SMALL)
    assert _files(tmp_path) == {"file"}
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failing_write_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "kept").write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="no space left"):
        files.write(tmp_path / "kept", b"new")
    assert _files(tmp_path) == {"kept"}
    assert (tmp_path / "kept").read_bytes() == b"old"


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    with pytest.raises(OutputError, match="permission denied"):
        files.prepare(str(tmp_path / "a" / "b"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"batches": list(range(1, 60_000))}, LimitError, "at most 100,000"),
        ({"models": ["llama9"]}, InputError, "unknown model"),
        ({"devices": ["a101"]}, InputError, "unknown device"),
        ({"quantizers": ["nope"]}, InputError, "unknown quantizer"),
        ({"batches": [0]}, InputError, "batches = '0': must be whole numbers from 1"),
        ({"models": []}, InputError, "must name at least one"),
    ],
)
def test_refusals_write_nothing(tmp_path: Path, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        WriteReport(out=str(tmp_path / "out"), **{**_SMALL, **changes}).run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nothing_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(image, "SIZED", ("png",))
    monkeypatch.setattr(to_matplotlib, "PNG_DPI", 40)  # empty panels are drawn, whatever their pixels
    dse.report(str(tmp_path), devices=["a100-40gb"], models=["llama2-70b"], quantizers=["fp16"], batches=[16])
    page = (tmp_path / "index.html").read_text()
    assert "none fits" in page
    assert "out of memory<" in page
    assert ": weights need" in page


def test_bits_are_those_of_papers_and_of_what_is_named():
    """Types of engines come in many variants, some for some head dimensions only."""
    papers = {"fp16", "bf16", "fp8", "int8", "int4", "kivi", "sinkq", "nqkv", "qserve", "atom", "tender", "oaken"}

    def families(quantizers):
        table = tables.ledger(report.ask(None, ["opt-125m"], quantizers, [16]))
        return {name.partition(":")[0] for name in table["quantizer"]}

    assert families(None) == {*papers, "kvquant"}
    assert families(["fp16", "turboquant_k8v4"]) == {*papers, "kvquant", "turboquant_k8v4"}


def test_an_image_of_plotly_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"write_image: kaleido is not installed \(pip install 'kv-dse\[export\]'\)"):
        dse.load("h200", "qwen3-8b", "fp8").plot().write_image(tmp_path / "a.png")


def test_text_that_a_spreadsheet_would_run_is_quoted():
    table = pd.DataFrame({"data": ["=cmd()", "+a", "-a", "@x", "\tx", "plain", "-", "-5", None], "n": [-1.0] * 9})
    table["text"] = table["data"].astype("string")
    lines = files.csv_of(table).decode().splitlines()
    assert lines[1:6] == ["'=cmd(),-1.0,'=cmd()", "'+a,-1.0,'+a", "'-a,-1.0,'-a", "'@x,-1.0,'@x", "'\tx,-1.0,'\tx"]
    assert lines[6:] == ["plain,-1.0,plain", "-,-1.0,-", "-5,-1.0,-5", ",-1.0,"]


@pytest.mark.parametrize("n_letters", [1, 38, 39, 40, 60])
def test_a_label_of_any_length_leaves_a_space_before_its_number(n_letters):
    label = "x" * n_letters
    line = present.line(label, "5 ms")
    assert line == f"  {label} ".ljust(42) + "5 ms"


@pytest.fixture(scope="module")
def compared():
    request = report.ask(["h100"], ["llama3.1-8b", "gpt-oss-20b"], ["fp16", "fp8"], [64])
    return report_gains.gains(replace(request, memory=None), 64, 8192)


def test_the_first_page_compares_like_with_like(compared):
    asked = {"batch": 64, "input_tokens": 8192, "admission": "paged"}
    for case in compared.cases:
        alone = dse.formats("h100", case.model, quantizers=["fp8"], **asked)
        assert case.formats[1].gain == alone.formats[1].gain
        plain, other = (one.result for one in case.formats)
        assert {
            plain[name] == other[name] for name in ("device", "weights", "memory", "model_kind", "stack", "tp")
        } == {True}


def test_the_first_page_says_in_how_many_cases_a_format_pays(compared):
    gains = {case.model: case.formats[1].gain.ratio for case in compared.cases}
    said = compared.answer()
    assert said[0].startswith(
        f"fp8 keys and values pay in 1 of 2 cases (a model on a device): {gains['llama3.1-8b']:.2f}"
    )
    assert f"in 1 more (gpt-oss-20b on H100): {gains['gpt-oss-20b']:.2f} times" in said[1]
    assert {tuple(line[:4]) for line in compared.lines()} == {
        ("llama3.1-8b", "H100", "fp8", "pays"),
        ("gpt-oss-20b", "H100", "fp8", "may pay"),
    }
    assert "memory that the server keeps for itself" in " ".join(compared.limits())


def test_a_case_that_cannot_be_told_is_named():
    request = report.ask(["h100"], ["deepseek-v3"], ["fp16", "int4_per_token_head"], [64])
    found = report_gains.gains(request, 64, 8192)
    assert not found.cases
    assert "latent" in found.left_out["deepseek-v3 on H100"]
    assert found.answer() == ["No format is compared: no model runs on any device."]


def test_presets(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "REPORT", {})
    monkeypatch.setattr(page, "REPORT", {})
    monkeypatch.setattr(image, "images", lambda *_: {})
    monkeypatch.setattr(systems, "TODAY_DEVICES", ("h200",))
    monkeypatch.setattr(systems, "TODAY_MODELS", ("qwen3-32b",))
    seen = []
    monkeypatch.setattr(tables, "build", lambda request, _: seen.append(request) or {"results": _results(request)})
    today = Path(dse.report(str(tmp_path / "today"))).read_text()
    assert today.index("Which KV-cache format pays?") < today.index("throughput against capacity")
    assert "fp8 keys and values pay in 1 of 1 cases" in today
    assert "Which system serves" not in today
    assert (seen[0].memory, seen[0].is_default) == (None, False)
    oaken = Path(dse.report(str(tmp_path / "oaken"), preset="oaken")).read_text()
    assert "--preset oaken" in oaken
    assert "Which KV-cache format pays?" not in oaken
    assert (seen[1].systems, seen[1].memory, seen[1].is_default) == (systems.DEFAULT, "paper", True)
    with pytest.raises(InputError, match="preset = 'oakn'"):
        dse.report(str(tmp_path / "x"), preset="oakn")
    with pytest.raises(InputError, match="no effect with --devices"):
        dse.report(str(tmp_path / "x"), devices=["h100"], preset="oaken")


def _results(request):
    """A few rows for the page."""
    return tables.one(
        "results", replace(request, systems=request.systems[:2], models=request.models[:1], batches=(16,))
    )
