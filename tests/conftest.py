"""The tiers and the order of the tests; shared fixtures: the command in this process, and the report's tables,
charts and pictures, made once a process."""

import ast
import gc
from functools import cache
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from dse.cli import commands
from dse.cli import main as cli
from dse.serving import simulator
from dse.validate.claims import core as claims
from dse.validate.claims import designs

QUICK = "not slow"
#: no run begins in Python: both give the same numbers (tests/serving/test_simulator.py), and compiled code is kept
simulator.PLAIN_STEPS = 0
#: no line about progress, whatever the machine's speed; its own test sets the time
commands.PATIENCE_S = 86_400.0


def _once(function):
    """The function of a claim, computed once a process; anew where its design points are watched."""
    kept = cache(function)
    return lambda: function() if designs._watched.get() else kept()


#: whichever page, command and table shows a claim
claims.FUNCTIONS.update({claim_id: _once(function) for claim_id, function in claims.FUNCTIONS.items()})

#: tests that compile the model, and tests that compile quantizers: half a minute or more each where nothing is kept yet
MODEL = ("sweep", "serving")
QUANTIZERS = ("conformance", "kernels_ref", "measure")

#: nothing that is made while tests are collected is garbage: it is searched neither then nor while they run
gc.disable()


def pytest_configure(config):
    """Choose the number of random examples by the tier; `-m "not slow"` of pyproject.toml is the quick one.

    They are the same in every run, so that a change and not a draw turns a test red; others by --hypothesis-seed=N.
    """
    examples = 10 if config.option.markexpr == QUICK else 100
    same = config.getoption("hypothesis_seed", None) is None
    settings.register_profile("tier", deadline=None, derandomize=same, max_examples=examples)
    settings.load_profile("tier")


def pytest_report_header(config):
    """Say which tier runs and how to run the rest."""
    tiers = {
        QUICK: "quick tier: 10 examples of each random test; the rest by `pytest -m slow`, all by `pytest -m ''`",
        "slow": "slow tier: browser, notebooks, site, cluster, kill and resume, 100 examples of each random test",
    }
    return tiers.get(config.option.markexpr, "chosen tests: 100 examples of each random test")


def _draws_by_the_tier(test):
    """Whether a test is random and its number of examples is the tier's, or some times that."""
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    return is_hypothesis_test(test) and own.max_examples % settings.default.max_examples == 0


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Choose the tests of the tier, then their order.

    Random tests are in both tiers, but for those with a number of examples of their own: the same again would tell
    nothing. One process compiles the model, the other quantizers: the first of two begins with the first test, the
    second in the middle (`--dist worksteal`). What needs either comes after, and finds it kept.
    """
    for item in items:
        is_random = config.option.markexpr.startswith("slow") and _draws_by_the_tier(getattr(item, "obj", None))
        if is_random or item.get_closest_marker("browser") or item.get_closest_marker("deep"):
            item.add_marker("slow")
    yield
    tests = Path(__file__).parent

    def those_of(folders):
        return [item for item in items if item.path.relative_to(tests).parts[0] in folders]

    model, quantizers = those_of(MODEL), those_of(QUANTIZERS)
    first = set(model + quantizers)
    rest = [item for item in items if item not in first]
    n_before = max(0, len(items) // 2 - len(model))
    items[:] = model + rest[:n_before] + quantizers + rest[n_before:]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """Search for garbage among what tests make alone."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def run(capsys):
    """Run the command in this process: (exit status, standard output, standard error)."""

    def call(*args):
        with pytest.raises(SystemExit) as stop:
            cli.main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


@pytest.fixture(scope="session")
def nodes():
    """Every node of the syntax of each source file: parsed once a process, and when a test first asks."""
    root = Path(__file__).parents[1]
    paths = [
        p
        for name in ("dse", "kernels_ref", "hwspecs", "calibration", "studies")
        for p in sorted((root / name).rglob("*.py"))
    ]
    return {path: list(ast.walk(ast.parse(path.read_text()))) for path in paths}


@pytest.fixture(scope="session")
def small():
    """All tables of a small default report: some points fit, some in parts, some not at all."""
    from dse.questions import tables
    from dse.specs import catalog

    models = tuple(catalog.model(name) for name in ("llama2-7b", "llama2-13b", "mixtral-8x7b-oaken"))
    return tables.build(tables.ReportRequest(models=models, batches=(16, 256)))


@pytest.fixture(scope="session")
def charts(small):
    """The figures of that report as data, which most tests look at."""
    from dse.figures import REPORT

    return {name: figure.chart(small[figure.table]) for name, figure in REPORT.items()}


@pytest.fixture(scope="session")
def pictures(charts):
    """A function from a figure's name to its PNG, SVG and PDF by matplotlib, drawn when first asked for."""
    from dse.figures.drawing import to_matplotlib

    return cache(lambda name: to_matplotlib.images(charts[name]))


@pytest.fixture
def sketch(monkeypatch):
    """A function that draws a chart by matplotlib as a small PNG: what matters is that it can be drawn."""
    from dse.figures.drawing import to_matplotlib

    monkeypatch.setattr(to_matplotlib, "PNG_DPI", 40)
    return lambda chart: to_matplotlib.image(chart, "png")
