"""Shared fixtures: hypothesis without deadlines (shared machines are noisy), the command in this process,
and the report's tables, charts and pictures, made once a process."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from dse.cli import main as cli

settings.register_profile("dse", deadline=None, max_examples=100)
settings.load_profile("dse")


#: tests that compile the model, and tests that compile quantizers: half a minute or more each where nothing is kept yet
MODEL = ("sweep", "serving")
QUANTIZERS = ("kernels_ref", "measure")


def pytest_collection_modifyitems(items):
    """One process compiles the model, the other quantizers: the first of two begins with the first test, the second in
    the middle (`--dist worksteal`). What needs either comes after, and finds it kept."""
    tests = Path(__file__).parent

    def those_of(folders):
        return [item for item in items if item.path.relative_to(tests).parts[0] in folders]

    model, quantizers = those_of(MODEL), those_of(QUANTIZERS)
    first = set(model + quantizers)
    rest = [item for item in items if item not in first]
    n_before = max(0, len(items) // 2 - len(model))
    items[:] = model + rest[:n_before] + quantizers + rest[n_before:]


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
def small():
    """All tables of a small default report: some points fit, some in parts, some not at all."""
    from dse.questions import tables
    from dse.specs import catalog

    models = tuple(catalog.model(name) for name in ("llama2-7b", "llama2-13b", "mixtral-8x7b"))
    return tables.build(tables.Request(models=models, batches=(16, 256)))


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
