"""Pages and README do what they say: commands and Python run, outputs are what is printed, links lead somewhere."""

import contextlib
import csv
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import tomllib
import webbrowser
from pathlib import Path

import numpy as np
import pytest

import browser
import dse
from cases import each, quick_first
from dse.cli import docs as docs_command
from dse.cli import main as cli
from dse.core.compiling import FORMULAS
from dse.core.errors import InputError
from dse.figures.export import image
from dse.measure import synthetic as kv_sample
from dse.model.results import RESULTS
from dse.model.results.ring import RING
from dse.questions import interactivity
from dse.report import answers, listing
from dse.specs import catalog

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: a paragraph before a block that no test runs: it says why
EXEMPT = r"\*Not run by the tests[^*]*\*\n+"
#: blocks: what stands before one, its language, its text
BLOCK = re.compile(rf"^({EXEMPT})?```(\w*)\n(.*?)^```$", re.M | re.S)
LANGUAGES = {"", "console", "json", "py", "python", "sh", "text", "toml"}


def blocks(path, language=None):
    """The blocks of a page that tests run, in order: language and text."""
    found = [(one[2], one[3]) for one in BLOCK.finditer(path.read_text()) if not one[1]]
    return found if language is None else [text for one, text in found if one == language]


def times():
    """Measured times of decode attention on a GPU that reaches 60 % of 864 GB/s after 12 us: made up."""
    lines = ["batch,n_q_heads,n_kv_heads,head_dim,kv_len_tokens,kv_dtype,latency_us"]
    for batch in (1, 4, 16, 64):
        for tokens in (128, 512, 2048, 8192, 32768):
            for heads in (4, 8):
                us = 12 + batch * heads * tokens * 512 / (0.6 * 864e9) * 1e6
                lines.append(f"{batch},32,{heads},128,{tokens},bfloat16,{us:.4f}")
    return "\n".join(lines) + "\n"


SERVERS = """\
id,backend,backend_version,model_path,system,precision,isl,osl,batch_size,tp_size,silicon_tpot_ms
a,vllm,0.16.0,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,bf16,1024,1024,16,1,9.5
"""
#: two runs of `vllm bench serve`
RUNS = "".join(
    json.dumps(
        {
            "model_id": "Qwen/Qwen3-32B",
            "max_concurrency": batch,
            "completed": 640,
            "output_throughput": 1e3 * batch / tpot,
            "total_input_tokens": 640 * 1024,
            "total_output_tokens": 640 * 512,
            "mean_tpot_ms": tpot,
        }
    )
    + "\n"
    for batch, tpot in ((16, 13.0), (64, 17.0))
)


def new_model():
    """A config.json of a model_type that nobody knows, with a key that nobody knows."""
    known = json.loads((ROOT / "tests/golden/hf_configs/qwen3-30b-a3b.json").read_text())
    return json.dumps(known | {"model_type": "new", "loops": 4})


def give(text, folder):
    """Write what the commands of a page take as the reader's own."""
    texts = {
        "my-times.csv": times,
        "times.csv": times,
        "my-servers.csv": lambda: SERVERS,
        "runs.json": lambda: RUNS,
        "my-gpu.toml": own_gpu,
        "vllm.log": (ROOT / "tests/validate/logs/vllm-0.19-qwen3-30b-a3b.log").read_text,
        "path/to/config.json": (ROOT / "tests/golden/hf_configs/mistral-7b-v0.1.json").read_text,
        "new-model/config.json": new_model,
    }
    if "sweep.toml" in text and "# sweep.toml" not in text:
        (folder / "sweep.toml").write_text(blocks(ROOT / "docs/how-to/sweep.md", "toml")[0])
    for name, made in texts.items():
        if name in text:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made())
    if "dse plot throughput_batch report" in text:
        (folder / "report").mkdir()
        dse.report_table("results", models=["llama2-7b", "llama2-13b"]).to_parquet(folder / "report" / "report.parquet")
    if "kv.npz" in text:
        np.savez(folder / "kv.npz", **kv_sample.arrays(kv_sample.synthetic(3, 2, 64, 16, 0)))


def own_gpu():
    """The device file of the page on own devices."""
    return blocks(ROOT / "docs/how-to/own-device.md", "toml")[0]


def printed(command):
    """What a command line prints; it must end well."""
    words = shlex.split(command, comments=True)
    assert words[0] == "dse", command
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        cli.main(words[1:])
    assert stop.value.code == 0, f"{command}\n{err.getvalue()}"
    return out.getvalue()


def shown_in(shown, output):
    """Whether a page shows an output; a line of dots stands for any number of lines."""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", shown, flags=re.M)]
    return re.fullmatch("(?:.*\n)*?".join(parts), output) is not None


def test_dots_stand_for_lines():
    assert shown_in("a\n...\nd\n", "a\nb\nc\nd\n")
    assert shown_in("a\n", "a\n")
    assert shown_in("...\n", "a\nb\n")
    assert not shown_in("a\n", "a\nb\n")
    assert not shown_in("a\n...\nd\n", "a\nb\nd")
    assert not shown_in("a\n...\nd\n", "b\na\nd\n")


def run_page(path, folder):
    """Run all of a page in a directory, from top to bottom."""
    give(path.read_text(), folder)
    names = {}
    for language, text in blocks(path):
        if language == "toml" and (name := re.match(r"# (\S+\.toml)\n", text)):
            Path(name[1]).write_text(text)
        elif language == "sh":
            for line in filter(None, (shlex.join(shlex.split(one, comments=True)) for one in text.splitlines())):
                printed(line)
        elif language == "console":
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                assert shown_in(shown, found := printed(command)), f"{command}\n{found}"
        elif language == "python":
            exec(compile(text, str(path), "exec"), names)


RUN = [path for path in PAGES if {language for language, _ in blocks(path)} & {"sh", "console", "python"}]


@quick_first(2, "path", RUN, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_runs(path, tmp_path, monkeypatch):
    """Pictures beside tables are drawn by tests of figures; `dse plot` draws those that a page is about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(image, "images", lambda chart, made_by: {"png": b""})
    run_page(path, tmp_path)


@each("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_stands_where_it_is_run(path):
    """In a block of its kind; what none runs says why, in the page."""
    text = path.read_text()
    assert len(re.findall(r"^```", text, re.M)) == 2 * len(BLOCK.findall(text))
    assert len(re.findall(r"Not run by the tests", text)) == len(re.findall(rf"{EXEMPT}```", text))
    for language, block in blocks(path):
        assert language in LANGUAGES
        if language == "toml":
            tomllib.loads(block)
        if language in ("", "text") and path.name != "README.md":
            assert not re.search(r"^\$? ?(dse|python3?|pip) ", block, re.M), block
    outside = BLOCK.sub("", text)
    assert not re.search(r"^(    )+\$? ?(dse|python3?|pip|dask) ", outside, re.M)


def test_few_blocks_are_not_run():
    assert sum(1 for path in PAGES for one in BLOCK.finditer(path.read_text()) if one[1]) <= 16


def target_exists(path, target):
    place, _, anchor = target.partition("#")
    page = (path.parent / place).resolve() if place else path
    made = re.sub(r"^docs/", "", str(page.relative_to(ROOT)))
    if made in {*GENERATED.PAGES, *GENERATED.FILES} or made.startswith(("notebooks/", "reference/devices/")):
        return True
    if not page.exists():
        return False
    heads = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.M) if anchor else []
    return not anchor or anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@each("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = BLOCK.sub("", path.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:", target):
            assert target_exists(path, target), target


def test_readme_links_no_page_that_a_checkout_lacks():
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_readme_is_short_and_has_one_picture():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert len(re.findall(r"!\[", text)) == 1


def test_readme_counts_what_ships_and_what_was_judged():
    text = (ROOT / "README.md").read_text()
    shipped = {
        "devices": catalog.device_files(),
        "language models": catalog.model_files(),
        "quantizer families": listing.list_quantizers(),
    }
    for name, ones in shipped.items():  # round numbers: one more of these leaves the page as it is
        said = int(re.search(rf"(\d+) {name}", text)[1])
        assert said < len(ones) < said + 20, name
    total = printed("dse validate claims").splitlines()[0]
    n_claims, verdicts = re.fullmatch(r"(\d+ claims): (.*)", re.sub(r" \([^)]*\)", "", total)).groups()
    assert n_claims in text
    assert verdicts in text


@pytest.mark.slow
def test_readme_says_how_far_off_kernel_times_are():
    """Means of all devices and stacks, and of a naive roofline, as `dse validate silicon` prints them."""
    text, rows = (ROOT / "README.md").read_text(), printed("dse validate silicon")

    def errors(part, size):
        numbers = re.findall(rf"^\S+ +\S+ +{part} +{size} +([\d.]+) +[\d.]+ +([\d.]+)", rows, re.M)
        assert len(numbers) > 20
        return (sorted((one[side] for one in numbers), key=float) for side in (0, 1))

    ours, sheets = errors("attention", "like serving")
    said = f"means of {ours[0]} to {ours[-2]} %, {ours[-1]} % for SGLang on A100"
    assert f"{said}; data sheets {sheets[0]} to {sheets[-1]} %" in text
    ours, sheets = errors("gemm", "larger than the cache")
    assert f"means of {ours[0]} to {ours[-1]} %; data sheets {sheets[0]} to {sheets[-1]} %" in text


def test_readme_says_how_far_off_servers_are():
    text = (ROOT / "README.md").read_text()
    with (ROOT / "dse/data/serving.csv").open() as file:
        rows = {(row["by"], row["group"]): row for row in csv.DictReader(file)}

    def errors(by, column, form):
        return (f"{100 * float(rows[by, kind][column]):{form}}" for kind in ("dense", "mixture"))

    assert "dense {} %, mixtures {} %".format(*errors("kind", "tpot_mean", ".1f")) in text
    assert "left out of the fit {} and {} %".format(*errors("model left out", "tpot_mean", ".1f")) in text
    assert "time to first token | the same | {} and {} %".format(*errors("kind", "ttft_mean", ".0f")) in text
    assert f"[{int(rows['all', 'all']['rows']):,} whole servers]" in text


def test_how_sure_has_the_correlations_and_medians_that_ship():
    """The table of what designs share, and by hand the interval that two runs that agree leave of a design."""
    text, shared = (ROOT / "docs/explanation/how-sure.md").read_text(), catalog.shared_errors()
    names = ("split", "groups", "engine", "release", "device", "weights")
    assert f"| r | {' | '.join(f'{getattr(shared, name):g}' for name in names)} | 0 |" in text
    assert f"likeliest of {shared.n_points:,} pairs" in text
    assert f"a correlation of r = {shared.load:g} (" in text
    left = [f"{(1 - 2 * (shared.load * r) ** 2 / (1 + shared.load)) ** 0.5:.2f}" for r in (1, shared.split)]
    assert "of that split {}; of another number of devices {}".format(*left) in text
    with (ROOT / "dse/data/serving.csv").open() as file:
        rows = {(row["by"], row["group"]): row for row in csv.DictReader(file)}
    medians = [
        f"{100 * float(rows[by, kind]['ttft_median']):.0f}"
        for by in ("kind", "model left out")
        for kind in ("dense", "mixture")
    ]
    assert "in the median {} and {}, {} and {} left out".format(*medians) in text


def test_the_tutorial_compares_designs_by_their_numbers():
    rows = re.findall(
        r"^\| ([\w-]+) \| (\w+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d,]+) \| (\w+) \|$",
        (ROOT / "docs/tutorial/index.md").read_text(),
        re.M,
    )
    assert len(rows) == 4
    for device, quantizer, *said in rows:
        found = dse.evaluate(device, "llama2-13b", quantizer, batch=128, admission="paged")
        assert said == [
            f"{found['max_batch']:.0f}",
            f"{found['running_batch']:.0f}",
            f"{found['decode_step_s'] * 1e3:.1f}",
            f"{found['throughput_tokens_per_s']:,.0f}",
            found["bound"],
        ]


def test_code_names_pages_that_exist():
    """`docs/NAME.md` in sources and data; CHANGELOG.md says what was."""
    folders = ("dse", "kernels_ref", "hwspecs", "scripts", "notebooks")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".toml", ".md", ".ipynb")
    ]
    named = {(path, name) for path in files for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())}
    assert named
    assert not {(str(path), name) for path, name in named if not (ROOT / name).exists()}


def generated():
    """docs/generated.py, which mkdocs loads as a hook."""
    spec = importlib.util.spec_from_file_location("docs_generated", ROOT / "docs" / "generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED = generated()


def test_generated_pages_hold_everything_that_they_are_of():
    page = GENERATED.cli_page()
    for words, command in GENERATED.commands(cli.cli, "dse"):
        assert f"## {words}\n" in page
        for option in command.params:
            assert all(
                name in page
                for name in option.opts
                if name.startswith("-") and name not in getattr(option, "former", ())
            )
    page = GENERATED.results_page()
    for name, one in RESULTS.items():
        assert (
            f'<a id="{name}"></a>`{name}` | {GENERATED.cell(one.unit or "-")} | {GENERATED.cell(one.title)} |' in page
        )
    assert all(f"\n| `{name}` | {one.unit} |" in page for name, one in RING.items() if one.lines)
    page = GENERATED.formulas_page()
    assert all(f"| `{name}` |" in page for name in FORMULAS)
    page = GENERATED.formats_page()
    for one in (*listing.list_quantizers(), *listing.list_implementations(), *listing.list_tokens()):
        assert f"| `{one['name']}` |" in page
    page = GENERATED.devices_page()
    assert all(f"(devices/{name}.md)" in page for name in catalog.device_files())


def test_the_page_of_a_device_has_each_number_with_its_source():
    page = GENERATED.device_page("oaken-lpddr")
    assert "| `memory_capacity` | 256 | GB | published | Oaken (ISCA 2025), Table 1 |" in page
    assert "| `idle_power` | 33.4 | W | assumed |" in page
    assert "## Fits" in page
    page = GENERATED.device_page("h100")
    assert page.count("\n| `") == len(listing.show("h100"))


def test_cells_hold_no_mark_up():
    assert GENERATED.cell("a | b < c * d\ne") == r"a &#124; b &lt; c \* d e"


def test_notebook_pages_are_the_notebook(tmp_path):
    cells = [("markdown", "# T\n", []), ("code", "1 + 1", ["picture"]), ("markdown", "end", [])]
    path = tmp_path / "01_x.ipynb"
    path.write_text(
        json.dumps(
            {"cells": [{"cell_type": kind, "source": [text], "metadata": {"tags": tags}} for kind, text, tags in cells]}
        )
    )
    page = GENERATED.notebook_page(path)
    assert page.startswith("# T\n")
    assert "```python\n1 + 1\n```\n\n![The figure that this cell draws](../images/notebook-01_x.png)\n\nend\n" in page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages, built as CI and `dse docs` do: strictly, from the files of the checkout."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in ("dse", "kernels_ref"):
        (folder / name).symlink_to(ROOT / name)
    before = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), before])))
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, "http://192.0.2.1:9")  # no network: a documentation address that answers nobody
        docs_command.build(folder)
    return folder / "site"


@pytest.mark.browser  # beside the next one, so that the pages are built once
def test_the_site_is_whole_and_asks_for_nothing_elsewhere(site):
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    sources = [path.relative_to(ROOT / "docs") for path in PAGES[1:]]
    assert {str(path.with_suffix(".html")) for path in sources} <= pages
    assert {name.replace(".md", ".html") for name in GENERATED.PAGES} <= pages
    for path in site.rglob("*.html"):
        text = path.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"([^\"]*)|<link[^>]*\shref=\"([^\"]*)", text)
        assert not [one for pair in loaded for one in pair if re.match(r"(https?:)?//", one)], path
    assert "Compare the KV formats of a device" in (site / "reference/python.html").read_text()


@pytest.mark.browser
@browser.needs_browser
def test_the_site_opens_from_disk_and_is_searched(site):
    with browser.chromium() as opened:
        visit(opened, site)


def visit(opened, site):
    page = opened.new_page(viewport={"width": 390, "height": 800})
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(error))
    for name in ("index", "reference/cli", "reference/devices/h200", "explanation/model", "how-to/which-format"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially("dequantization")  # it searches when a key is let go
    page.wait_for_selector(".md-search-result__item", state="attached")
    answer(page, site)
    assert not errors
    assert all(url.startswith(("file:", "data:")) for url in asked)


def answer(page, site):
    """The page of answers has the best within limits as the question has it."""
    page.goto((site / "answers.html").as_uri())
    page.get_by_role("combobox", name="Model").select_option("llama3.1-70b")
    page.get_by_role("combobox", name="KV format").select_option("fp8")
    limits = {"max_tpot": "50 ms", "max_ttft": "5 s"}
    best = dse.interactivity("h200", "llama3.1-70b", ["fp8"], input_tokens=1024, output_tokens=1024, **limits).best
    said = page.locator("#verdict").inner_text()
    assert f": {best['n_devices']} x H200" in said
    assert f"{best['batch']:,} requests at once: " in said
    rate = float(re.search(r": ([\d,]+) tok/s a device", said)[1].replace(",", ""))
    assert rate == pytest.approx(interactivity.speeds(best)[1], rel=1e-2)
    assert page.locator("#formats tr").count() == len(answers.FORMATS)
    page.get_by_role("combobox", name="Model").select_option("deepseek-v3")
    page.get_by_role("combobox", name="Device").select_option("A100-80GB")
    page.get_by_role("combobox", name="KV format").select_option("any")
    assert page.locator("#verdict").inner_text() == "It does not fit on up to 8 of these devices."
    assert page.locator("#plot .main-svg").count() > 0
    page.get_by_role("link", name="How far off it is").click()
    page.get_by_role("link", name="To the answers").click()
    page.locator("#asked").wait_for()


def test_docs_prints_where_the_pages_are_and_opens_them(tmp_path, monkeypatch, capsys):
    page = tmp_path / "site" / "index.html"
    page.parent.mkdir()
    page.write_text("built")
    monkeypatch.setattr(docs_command, "ROOT", tmp_path)
    opened, built = [], []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(docs_command, "build", built.append)
    assert printed("dse docs --path") == f"{page}\n"
    assert (opened, built) == ([], [])
    assert printed("dse docs") == ""
    assert opened == [page.as_uri()]
    printed("dse docs --build --path")
    assert built == [tmp_path]
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert printed("dse docs") == f"{page}\n"
    page.unlink()
    printed("dse docs --path")
    assert len(built) == 2


def test_docs_writes_answers_for_models_and_devices_that_are_named(tmp_path, capsys):
    out = tmp_path / "out"
    asked = "--models llama2-7b --devices a100-80gb,h100 --formats fp16,fp8 --lengths 1k+100"
    assert printed(f"dse docs {asked} --out {out}") == f"{out / 'answers.html'}\n"
    assert {path.name for path in out.iterdir()} == {"answers.html", "accuracy.html", "plotly.min.js"}
    data = re.search(r'<script id="data"[^>]*>(.*?)</script>', (out / "answers.html").read_text(), re.S)[1]
    tables = json.loads(data)["tables"]
    assert {name: {*devices} for name, devices in tables.items()} == {"llama2-7b": {"A100-80GB", "H100"}}
    assert [*tables["llama2-7b"]["H100"]["1024+100"]["formats"]] == ["fp16", "fp8"]
    for wrong, said in (
        ("--models llama2-7b", "models = 'llama2-7b': has no effect without --out: add --out DIR"),
        (f"--build --out {out}", "build: has no effect with --out: leave it out"),
        (f"--lengths 8192 --out {out}", "lengths = '8192': must be tokens of prompt and answer, such as"),
        (f"--devices nosuch --out {out}", "unknown device 'nosuch'"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["docs", *shlex.split(wrong)])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err


def test_docs_of_an_install_without_them_say_how_to_get_them(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"has no documentation.*pip install.*\[docs\].*dse docs"):
        docs_command.build(tmp_path)
    (tmp_path / "mkdocs.yml").write_text("")
    monkeypatch.setattr(docs_command, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"not built, and mkdocs is not installed.*\[docs\]"):
        docs_command.build(tmp_path)


def test_a_build_that_fails_is_one_line(tmp_path):
    (tmp_path / "mkdocs.yml").write_text("site_name: t\nstrict: true\nnav: [a.md]\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# t\n\n[b](b.md)\n")
    with pytest.raises(docs_command.OutputError, match=r"mkdocs: .*a\.md") as raised:
        docs_command.build(tmp_path)
    assert "\n" not in str(raised.value)
