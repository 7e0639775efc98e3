"""The shape of the code base: imports point down, files are rooms, names are in the glossary, docs stay true."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from dse.formulas import core
from dse.point import RESULT_UNITS

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for folder in ("dse", "kernels_ref", "hwspecs") for path in (ROOT / folder).rglob("*.py")
)  # fmt: skip

#: lowest first; a file may import its own level and those below
LEVELS = [
    {"kernels_ref", "hwspecs", "dse.llms", "dse.data", "dse.units", "dse.errors", "dse.interrupt"},
    {"dse.formulas", "dse.quantizers", "dse.token_policies", "dse.specfile", "dse.dumps"},
    {
        "dse.quantity",
        "dse.specs",
        "dse.hf_config",
        "dse.hf_keys",
        "dse.hf_params",
        "dse.measurements",
        "dse.files",
    },
    {"dse.catalog", "dse.plan", "dse.trace", "dse.traffic", "dse.workload"},
    {
        "dse.peaks",
        "dse.assumptions",
        "dse.memory",
        "dse.packing",
        "dse.sink_work",
        "dse.kv_sums",
        "dse.steps",
        "dse.point",
        "dse.ring",
        "dse.utilisation",
        "dse.step_times",
        "dse.serving",
        "dse.admission",
    },
    {"dse.simulate", "dse.sweep", "dse.pareto", "dse.systems", "dse.tables", "dse.claims", "dse.questions"},
    {
        "dse.plots",
        "dse.present",
        "dse.listing",
        "dse.export",
        "dse.web_page",
        "dse.measure",
        "dse.mixed",
        "dse.lm",
        "dse.kv_sample",
        "dse.validate",
        "dse.calibrate",
    },
    {"dse.report", "dse.plot", "dse.explorer", "dse.cli", "dse.__main__"},
]


def module_of(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def unit_of(module):
    """The room a module belongs to: dse.formulas.core -> dse.formulas."""
    parts = module.split(".")
    return parts[0] if parts[0] in ("kernels_ref", "hwspecs") else ".".join(parts[:2])


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module in ("dse", "dse.formulas"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def level(unit):
    for index, units in enumerate(LEVELS):
        if unit in units or any(unit.startswith(name + "_") for name in units):
            return index
    return None


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_down(path):
    own = unit_of(module_of(path))
    if own == "dse":  # the package itself imports nothing
        assert not [name for name in imports_of(path) if name.startswith("dse.")]
        return
    assert level(own) is not None, f"{own}: give it a level"
    for name in imports_of(path):
        if name.split(".")[0] in ("dse", "kernels_ref", "hwspecs"):
            unit = unit_of(name)
            if unit != "dse" and level(unit) is not None:
                assert level(unit) <= level(own), f"{own} imports {unit}"
            assert not (own == "kernels_ref" and unit != "kernels_ref")
            assert not (own != "kernels_ref" and name.startswith("kernels_ref.")), "import kernels_ref itself"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_files_are_rooms(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text)), "say what the file is for"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_public_functions_and_classes_are_documented(path):
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def glossary():
    text = (ROOT / "README.md").read_text().split("## Glossary", 1)[1]
    return set(re.findall(r"`([a-z0-9_]+)`", text))


def test_glossary_names_every_column_and_parameter():
    parameters = {name for f in core.load_all().values() for name in inspect.signature(f).parameters}
    missing = (parameters | set(RESULT_UNITS)) - glossary()
    assert not missing


def test_glossary_names_nothing_that_is_gone():
    parameters = {name for f in core.load_all().values() for name in inspect.signature(f).parameters}
    words = {"bit_ledger", "operations", "reserve", "paged", "ideal", "calibrated", "closed", "measured"}
    words |= {"n_", "_bytes", "_s", "_tokens", "_bits", "_flops", "_frac", "_share", "_per_s", "_w"}
    assert not glossary() - parameters - set(RESULT_UNITS) - words


def test_results_carry_the_unit_that_their_name_says():
    endings = {"_bytes": "B", "_s": "s", "_bits": "bit", "bytes_per_s": "B/s", "tokens_per_s": "token/s"}
    for name, unit in RESULT_UNITS.items():
        for ending in sorted(endings, key=len, reverse=True):
            if name.endswith(ending):
                assert unit == endings[ending], name
                break


def test_readme_starts_with_the_two_commands():
    text = (ROOT / "README.md").read_text()
    setup = "python3 -m venv .venv && . .venv/bin/activate && pip install -c constraints.txt -e "
    assert f"\n{setup}. && dse report\n" in text
    assert f'\n{setup}".[test]" && pytest\n' in text


def test_every_dependency_is_pinned():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert {name.lower() for name in wanted} <= {name.lower() for name in pinned}


def test_nothing_turns_exactness_off():
    for path in SOURCES:
        assert "fastmath=True" not in path.read_text()
