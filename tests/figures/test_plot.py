"""`dse plot`: every kind from a table, sizes, fonts and what made it in the file, and what is refused."""

import json
import re
import zlib
from dataclasses import replace

import pandas as pd
import pytest
from jinja2 import UndefinedError

import dse
from dse import __version__
from dse.core import files
from dse.core.errors import InputError, LimitError
from dse.figures import FIGURES, REPORT, source
from dse.figures.drawing import fit, page_layout
from dse.figures.drawing.chart import Chart
from dse.figures.export import web_page
from dse.figures.export.image import PRESETS, export, metadata, parquet
from dse.figures.plot import load
from dse.figures.source import Source
from dse.validate import verdicts

MADE_BY = "dse plot bit_ledger 'my report' --out F"


@pytest.fixture(scope="module")
def report(small, tmp_path_factory):
    """A report's directory with its tables alone."""
    folder = tmp_path_factory.mktemp("report")
    for name, table in small.items():
        files.write(folder / ("report.parquet" if name == "results" else f"tables/{name}.parquet"), parquet(table))
    return folder


@pytest.fixture(scope="module")
def ledger(charts) -> Chart:
    return charts["bit_ledger"]


@pytest.fixture
def run(run):
    """`dse plot` in this process."""
    return lambda *args: run("plot", *args)


@pytest.mark.parametrize("keep", [["max_batch"], ["throughput_tokens_per_s", "bound"], "all"])
def test_a_sweep_has_every_figure_of_designs_whatever_it_kept(run, tmp_path, keep):
    """Lengths, admission, memory and assumptions, which it holds fixed, are filled in."""
    spec = {"axes": {"device": ["h100", "lpu-hbm"], "model": "llama2-7b", "batch": [1, 64, 512]}, "keep": keep}
    dse.sweep(spec, tmp_path / "designs")
    for kind in ("throughput_batch", "latency_breakdown"):
        drawn = tmp_path / f"{kind}.csv"
        assert run(kind, tmp_path / "designs", "--only", "device=h100", "--out", drawn)[0] == 0
        table = pd.read_csv(drawn)
        assert {*FIGURES[kind].columns} <= {*table}
        assert table["input_tokens"].tolist() == [1024] * 3
        assert table["throughput_tokens_per_s"].tolist() == pytest.approx(
            [dse.evaluate("h100", "llama2-7b", batch=batch).throughput_tokens_per_s for batch in (1, 64, 512)]
        )


def test_a_figure_needs_the_columns_that_it_names(charts, report):
    for name, figure in REPORT.items():
        chart, table = load.load(name, str(report))
        assert chart == charts[name]
        for column in figure.columns:
            with pytest.raises(InputError, match=f"lacks {column}: `dse report"):
                load._check(figure, Source(table.drop(columns=column)), "t.csv")


@pytest.mark.parametrize("preset", PRESETS)
def test_everything_lies_on_the_page(preset, charts):
    wrong = {}
    for name in REPORT:
        try:
            lies_on_the_page(charts[name], PRESETS[preset])
        except AssertionError as error:
            wrong[name] = str(error)
    assert wrong == {}
    assert PRESETS[preset].text >= (18 if preset == "slide" else 8)


def lies_on_the_page(chart, page):
    chart = fit.fitted(chart, page)
    place = page_layout.place(chart, page)
    assert place.height <= (page.height or fit.MAX_HEIGHT * 1.2) + 1e-9
    for panel, box in zip(chart.panels, place.panels, strict=True):
        assert box.width > 30 * page.scale
        assert box.height > 20 * page.scale
        assert box.x > 0
        assert box.x + box.width < place.width
        assert place.notes_top < box.y
        assert box.y + box.height < place.legend_top
        for axis, length in ((panel.x, box.width), (panel.y, box.height)):
            if not fit.is_list(axis):  # names stand apart: thinning again changes nothing
                assert fit.thinned(axis, length, page, axis is panel.x) == axis
    for line in place.notes:
        assert page_layout.measured(line, page.note) <= page.width


def test_pdf_embeds_truetype_fonts_and_says_what_made_it(ledger):
    content = export(ledger, "pdf", MADE_BY, page=PRESETS["paper"])
    assert content == export(ledger, "pdf", MADE_BY, page=PRESETS["paper"])
    parts = [content]
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.S):
        try:
            parts.append(zlib.decompress(stream))
        except zlib.error:
            continue
    whole = b"".join(parts)
    assert b"/FontFile2" in whole
    assert b"/Type3" not in whole
    assert b"CreationDate" not in whole
    assert b"ModDate" not in whole
    assert f"(dse {__version__})".encode() in whole
    assert b"Made by: dse plot bit_ledger 'my report' --out F" in whole
    width, _ = map(float, re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", whole).groups())
    assert width == pytest.approx(85 / 25.4 * 72, abs=0.01)  # 85 mm: 240.94 pt


def test_png_and_svg_say_what_made_them_and_have_their_size(ledger):
    import io

    import PIL.Image as pil

    page = PRESETS["slide"]
    column = replace(PRESETS["paper"], width=72.0 * 6, height=72.0 * 4)
    image = pil.open(io.BytesIO(export(ledger, "png", MADE_BY, page=column)))
    assert image.size == (1800, 1200)  # 6 x 4 inches at 300 dots
    assert image.text["Source"] == MADE_BY
    assert image.text["Software"] == f"dse {__version__}"
    assert image.text["Title"] == ledger.title
    assert image.text["Description"] == " ".join(ledger.notes)
    svg = export(ledger, "svg", MADE_BY, page=page).decode()
    assert 'width="960pt" height="540pt"' in svg
    assert f"<dc:source>{MADE_BY}</dc:source>" in svg
    assert f"<dc:title>dse {__version__}</dc:title>" in svg
    assert "<text" not in svg
    assert "dc:date" not in svg


def test_html_csv_and_parquet(ledger, small):
    table = small["ledger"]
    page = export(ledger, "html", "dse plot <x>").decode()
    assert f'<meta name="generator" content="dse {__version__}">' in page
    assert f"Made by <code>dse plot &lt;x&gt;</code>, dse {__version__}." in page
    assert export(ledger, "csv", MADE_BY, table) == files.csv_of(table)
    import io

    import pyarrow.parquet as pq

    schema = pq.read_schema(io.BytesIO(export(ledger, "parquet", MADE_BY, table)))
    assert schema.metadata[b"made_by"] == MADE_BY.encode()
    assert schema.field("stored_bits").metadata == {b"unit": b"bit"}
    with pytest.raises(InputError, match="needs the table"):
        export(ledger, "csv", MADE_BY)


def test_pages_escape_every_value(ledger):
    page = web_page.figure_page(replace(ledger, title="<b>&"), "dse '<i>'", question="<u>?", is_beside=True)
    assert "<title>&lt;b&gt;&amp;</title>" in page
    assert "<p>&lt;u&gt;?</p>" in page
    assert "<code>dse &#39;&lt;i&gt;&#39;</code>" in page
    with pytest.raises(UndefinedError, match="question"):  # a value that a page shows cannot be forgotten
        web_page.render("figure.html", title="t", chart=ledger, made_by="dse")


def test_long_lists_are_cut_into_columns_with_every_row(ledger):
    split = fit._split(ledger, 3)
    names = [text for panel in ledger.panels for _, text in panel.y.ticks][::-1]
    shown = [text for panel in split.panels for _, text in panel.y.ticks[::-1]]
    assert shown == names
    for which in range(len(ledger.panels[0].series)):
        drawn = sorted(x for panel in split.panels for x in panel.series[which].x)
        assert drawn == sorted(ledger.panels[0].series[which].x)


def test_tables_of_validation_and_simulation_draw_what_the_commands_draw(tmp_path):
    rows = verdicts.claim_rows()
    files.write(tmp_path / "claims.csv", files.csv_of(pd.DataFrame(verdicts.to_json(rows))))
    assert load.load("claims", str(tmp_path))[0] == FIGURES["claims"].chart(pd.DataFrame(verdicts.to_json(rows)))
    over = pd.DataFrame(
        {
            "time_s": [0.0, 1.5],
            "running": [1, 2],
            "waiting": [0, 3],
            "used_bytes": [1e9, 2e9],
            "free_bytes": [3e9] * 2,
            "tokens_per_s": [0.0, 7.25],
            **{name: ["x"] * 2 for name in ("device", "model", "quantizer", "batching", "admission")},
        }
    )
    files.write(tmp_path / "over_time.csv", files.csv_of(over))
    assert load.load("simulation", str(tmp_path))[0] == FIGURES["simulation"].chart(over)
    points = pd.DataFrame(
        {
            "device": "D",
            "stack": "s",
            "part": ["gemm", "attention"],
            "measured_s": [1e-3, 2e-3],
            "predicted_s": [1.1e-3, 1.9e-3],
            "held_out": [True, False],
        }
    )
    files.write(tmp_path / "points.csv", files.csv_of(points))
    for name, titles in (
        ("predicted_measured", ["gemm", "attention"]),
        ("silicon_gemm", ["s, matrix products"]),
        ("silicon_attention", ["s, attention, 16 bits"]),
    ):
        chart, _ = load.load(name, str(tmp_path / "points.csv"))
        assert [panel.title for panel in chart.panels] == titles


def test_command(run, report, tmp_path):
    out = tmp_path / "f.pdf"
    code, said, _ = run("throughput_batch", report, "--out", out, "--only", "model=llama2-7b", "--no-notes")
    assert code == 0
    assert "85 x" in said
    assert "for the caption:" in said
    assert "assumed numbers" in said
    assert b"/Title" in out.read_bytes()
    code, *_ = run("throughput_batch", report, "--out", tmp_path / "f.csv", "--only", "model=llama2-7b")
    assert code == 0
    assert set(pd.read_csv(tmp_path / "f.csv")["model"]) == {"llama2-7b"}
    about = json.loads((tmp_path / "f.csv-metadata.json").read_text())
    assert about["made_by"].startswith("dse plot throughput_batch")
    assert about["dse_version"] == __version__
    code, said, _ = run()
    assert code == 0
    assert all(f"\n{name}\n" in said for name in FIGURES)
    assert [one["kind"] for one in json.loads(run("--list", "--json")[1])] == list(FIGURES)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["throughput_bath", "REPORT", "--out", "f.pdf"], "did you mean throughput_batch"),
        (["roofline", "REPORT", "--out", "f.gif"], "must end in one of .png, .svg, .pdf, .html, .csv, .parquet"),
        (["roofline", "nowhere", "--out", "f.pdf"], "is no directory or file: made by `dse report --out DIR`"),
        (["cross", "REPORT", "--out", "f.pdf"], "has no cross.csv or .parquet: made by `dse ask cross --out DIR`"),
        (["formats", "--out", "f.pdf"], "give what `dse ask formats --out DIR` wrote"),
        (["roofline", "REPORT"], "--out is missing"),
        (["roofline", "REPORT", "--out", "f.pdf", "--preset", "poster"], "preset = 'poster'"),
        (["roofline", "REPORT", "--out", "f.pdf", "--width", "5"], "width = 5: must be a number from 40 to 1,200 mm"),
        (["throughput_batch", "REPORT", "--out", "f.pdf", "--height", "40"], "is too small for this figure"),
        (["roofline", "REPORT", "--out", "f.csv", "--preset", "slide"], "has no effect in .csv"),
        (["roofline", "REPORT", "--out", "f.pdf", "--only", "modle=x"], "did you mean model"),
        (["roofline", "REPORT", "--out", "f.pdf", "--only", "model=x"], "no row has it"),
        (["roofline", "REPORT", "--out", "f.pdf", "--title", "A", "--no-title"], "has no effect with --no-title"),
        (["front", "TABLE", "--out", "f.pdf"], "front needs 't.figure.json' beside its table"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(run, report, tmp_path, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(
        "memory_bandwidth,throughput_tokens_per_s,running_batch,bound,meets\n1,1,1,x,True\n"
    )
    code, _, error = run(*({"REPORT": report, "TABLE": "t.csv"}.get(word, word) for word in args))
    assert code in (2, 5)
    assert error.count("\n") == 1
    assert words in error
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_rows_over_each_other_are_refused_and_only_chooses(report, small, tmp_path):
    own = small["results"].drop(columns="system").drop_duplicates(["device", "quantizer", "model", "batch"])
    twice = pd.concat([own.assign(memory_bandwidth=1e12), own.assign(memory_bandwidth=2e12)])
    files.write(tmp_path / "t.csv", files.csv_of(twice))
    with pytest.raises(InputError, match="2 rows of one mark differ in memory_bandwidth: choose with --only"):
        load.load("throughput_batch", str(tmp_path / "t.csv"))
    chart, table = load.load("throughput_batch", str(tmp_path / "t.csv"), ["memory_bandwidth=2e12"])
    assert len(table) == len(own)
    assert chart.panels


def test_bad_tables(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("axis,at,first,last,verdict,gain_at_first,gain_at_last\nbatch,1,ten,20,no,,\n")
    with pytest.raises(InputError, match="cannot be drawn as cross"):
        load.load("cross", str(path))
    path.write_text("")
    with pytest.raises(InputError, match="cannot be read as a table"):
        load.load("cross", str(path))
    path.write_text("axis,at,first,last,verdict,gain_at_first,gain_at_last\n")
    with pytest.raises(InputError, match="has no rows"):
        load.load("cross", str(path))
    path.write_text("axis,at,first,last,verdict,gain_at_first,gain_at_last\n" + "batch,1,1,20,no,,\n" * 3)
    monkeypatch.setattr(source, "MAX_ROWS", 2)
    with pytest.raises(LimitError, match="over 2 rows"):
        load.load("cross", str(path))


def test_a_title_may_be_left_out_of_the_picture_but_not_of_the_file(ledger):
    page = replace(PRESETS["paper"], shows_title=False, shows_notes=False)
    assert page_layout.place(ledger, page).title == ()
    assert page_layout.place(ledger, page).notes == ()
    assert metadata(ledger, "pdf", MADE_BY)["Title"] == ledger.title


def test_a_figure_of_the_report_needs_no_table(run, tmp_path):
    """It has Oaken's devices."""
    out = tmp_path / "f.csv"
    assert run("throughput-capacity", "--out", out)[0] == 0
    table = pd.read_csv(out)
    assert table[["device", "quantizer"]].to_numpy().tolist() == [
        [device, quantizer]
        for device in ("A100-80GB", "Oaken-HBM", "Oaken-LPDDR")
        for quantizer in ("fp16", "oaken", "nqkv", "sinkq")
    ]
    # by hand: 256 GB * 16 / (4 + 8 * 0.10 + 96 / 5120) bits (Oaken Table 2: 4.82), * 16 / 2.25 (SinkQ, G = 128)
    sizes = table.set_index(["device", "quantizer"])["effective_capacity_bytes"] / 1e9
    assert sizes["Oaken-LPDDR", "oaken"] == pytest.approx(256 * 16 / 4.81875)
    assert sizes["Oaken-LPDDR", "sinkq"] == pytest.approx(256 * 16 / 2.25)
    assert set(table["batch"]) == {256}
    assert run("throughput_capacity", "--only", "device=h100", "--out", out)[0] == 2


def test_a_table_without_an_axis_of_the_figure_is_told_in_a_line(run, small, tmp_path):
    file, out = tmp_path / "t.csv", tmp_path / "f.pdf"
    small["capacity"].drop(columns="effective_capacity_bytes").to_csv(file, index=False)
    status, _, problem = run("throughput_capacity", file, "--out", out)
    assert (status, problem.count("\n"), out.exists()) == (2, 1, False)
    assert "lacks effective_capacity_bytes: `dse report --out DIR` writes such a table, and a directory of" in problem


def test_a_device_that_holds_nothing_is_a_cross_with_its_name(small):
    """One Oaken-HBM has no room for the weights of Mixtral-8x7B."""
    of_mixtral = small["results"][
        (small["results"]["model"] == "mixtral-8x7b-oaken") & (small["results"]["batch"] == 16)
    ]
    chart = FIGURES["throughput_capacity"].chart(of_mixtral)
    (cross,) = [s for s in chart.panels[0].series if s.marker == "x-thin" and "Oaken-HBM" in s.labels[0]]
    row = of_mixtral[of_mixtral["system"] == "Oaken-HBM"].iloc[0]
    assert cross.x == (row["effective_capacity_bytes"],)
    assert cross.y[0] < 0
    assert any("Crosses at the foot" in note for note in chart.notes)
