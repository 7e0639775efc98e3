"""The shape of the code base: imports point down, names are in the glossary, docs stay true.

Each file's docstrings, and that nothing prints, are ruff's rules (D and T20 in pyproject.toml).
"""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

from dse.core.compiling import FORMULAS
from dse.model import formulas
from dse.model.results import RESULT_UNITS

for _module in pkgutil.iter_modules(formulas.__path__):
    importlib.import_module(f"dse.model.formulas.{_module.name}")
importlib.import_module("dse.specs.tokens")
ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("dse", "kernels_ref", "hwspecs") for path in (ROOT / folder).rglob("*.py"))


def test_imports_point_down(monkeypatch):
    """The contracts of pyproject.toml: layers, nothing of dse in kernels_ref. `lint-imports` says what breaks them."""
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("importlinter.cli._configure_logging", lambda verbose: None)  # it disables all loggers that are
    assert lint_imports(no_cache=True) == EXIT_STATUS_SUCCESS


def test_a_list_of_names_hides_nothing_without_a_docstring():
    """Where a module has `__all__`, ruff's docstring rules look at the names in it alone."""
    bare = [
        f"{path}:{node.lineno}: {node.name}"
        for path in SOURCES
        if "__all__" in (text := path.read_text())
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not bare


def test_no_test_file_imports_another():
    """What two of them need is in `factories.py` or the `conftest.py` of their folder."""
    importing = re.compile(r"^ *(?:from|import) +(?:[\w.]+\.)?test_\w+", re.MULTILINE)
    tests = ROOT / "tests"
    imported = [(path.relative_to(tests), importing.findall(path.read_text())) for path in sorted(tests.rglob("*.py"))]
    assert not [(path, found) for path, found in imported if found]


#: letters of equations, inputs of formulas, and words of results; the page of results is made from RESULTS itself
SYMBOLS = ROOT / "docs" / "reference" / "symbols.md"


def glossary():
    return set(re.findall(r"`([a-z0-9_]+)`", SYMBOLS.read_text()))


def parameters():
    return {name for f in FORMULAS.values() for name in inspect.signature(f).parameters}


def test_symbols_name_every_parameter():
    assert not parameters() - set(RESULT_UNITS) - glossary()


def test_symbols_give_a_result_its_unit():
    """A row has one unit for all of its names, or one for each, in their order."""
    units = {}
    for row in re.findall(r"^\|(.*)\|$", SYMBOLS.read_text(), re.M)[2:]:
        _, names, unit, _ = (cell.strip() for cell in row.split("|"))
        names = re.findall(r"`([a-z0-9_]+)`", names)
        given = [text.strip() for text in unit.split(",")]
        given *= len(names) if len(given) == 1 else 1
        if not {*names} & {*RESULT_UNITS}:
            continue
        assert len(given) == len(names), row
        units.update(zip(names, given, strict=True))
    named = {*RESULT_UNITS} & {*units}
    assert len(named) > 100
    assert {name: units[name] for name in named} == {name: RESULT_UNITS[name] for name in named}


def test_symbols_name_nothing_that_is_gone():
    words = {"bit_ledger", "operations", "reserve", "paged", "ideal", "calibrated", "closed", "measured", "estimated"}
    words |= {"n_", "_bytes", "_s", "_tokens", "_bits", "_flops", "_frac", "_share", "_per_s", "_w"}
    assert not glossary() - parameters() - set(RESULT_UNITS) - words


def test_results_carry_the_unit_that_their_name_says():
    endings = {"_bytes": "B", "_s": "s", "_bits": "bit", "bytes_per_s": "B/s", "tokens_per_s": "tok/s"}
    endings |= {"requests_per_s": "request/s"}
    for name, unit in RESULT_UNITS.items():
        for ending in sorted(endings, key=len, reverse=True):
            if name.endswith(ending):
                assert unit == endings[ending], name
                break


def test_every_dependency_is_pinned():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert {re.match(r"[\w.-]+", name)[0].lower() for name in wanted} <= {name.lower() for name in pinned}


def test_nothing_turns_exactness_off():
    for path in SOURCES:
        assert "fastmath=True" not in path.read_text()


#: calls that open a file by its path
OPENS = {"open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "memmap", "fromfile", "tofile"}
OPENS |= {"from_file", "GGUFReader", "safe_open", "load_file", "from_pretrained", "FileIO", "OSFile", "memory_map"}
#: calls that take a path or an open file: an open one is given
EITHER = {
    "ParquetFile",
    "ParquetDataset",
    "read_parquet",
    "read_csv",
    "read_schema",
    "ZipFile",
    "loadtxt",
    "genfromtxt",
}
#: names of open files, or of bytes in memory
OPEN_ALREADY = {"raw", "file", "BytesIO", "StringIO", "SourceFile"}
#: modules, or objects, whose method of such a name opens none by a path
OTHERS = {"files", "tables", "webbrowser", "archive", "opener"}
#: the one module, and who opens a file for what that does not do
MAY_OPEN = {
    "dse/core/files.py": "the one module",
    "dse/data/__init__.py": "what ships beside it",
    "dse/sweep/store.py": "the lock of a directory, which is kept open",
}


def _opens(node: ast.Call) -> bool:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    of = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
    if name in EITHER and node.args:
        first = node.args[0]
        given = first.func if isinstance(first, ast.Call) else first
        return (
            of not in OTHERS
            and (given.attr if isinstance(given, ast.Attribute) else getattr(given, "id", "")) not in OPEN_ALREADY
        )
    loads = name in ("load", "save", "savez") and of in ("np", "numpy")
    in_memory = loads and isinstance(node.args[0], ast.Name) and node.args[0].id == "content"
    return (name in OPENS and of not in OTHERS) or (loads and not in_memory)


def test_one_module_opens_files(nodes):
    """A reader of its own meets an endless device, a pipe that nobody writes, and sizes beyond all memory."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
        for path, nodes_of_file in nodes.items()
        if path.parts[len(ROOT.parts)] == "dse"
        for node in nodes_of_file
        if isinstance(node, ast.Call) and _opens(node)
    }
    assert {place.partition(":")[0] for place in found} == {*MAY_OPEN}, found
    assert sum(place.startswith("dse/sweep/store.py") for place in found) == 1
    assert sum(place.startswith("dse/data/") for place in found) == 1


#: texts that the product wrote in this process, or that ship with it
MAY_PARSE = (
    "dse/core/specfile.py",
    "dse/agents.py",
    "dse/explorer/figure.py",
    "dse/operations/dumps.py",
    "dse/serving/trace_tables.py",
    "dse/specs/catalog.py",
    "dse/specs/measurements.py",
    "dse/sweep/filling.py",
    "dse/sweep/store.py",
)


def test_one_module_parses_what_users_give(nodes):
    """JSON and TOML by the module that refuses keys given twice, NaN and depth beyond reason."""
    parsed = [
        path.relative_to(ROOT).as_posix()
        for path, nodes_of_file in nodes.items()
        for node in nodes_of_file
        if path.parts[len(ROOT.parts)] == "dse"
        and isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("json.loads", "json.load", "tomllib.loads", "tomllib.load")
    ]
    assert {*parsed} == {*MAY_PARSE}
    assert all(parsed.count(place) <= 2 for place in MAY_PARSE[1:])


def test_one_module_hands_tables_to_other_packages(nodes):
    """Their readers take a few bytes for any number of cells, and raise what they like; data that ship may."""
    readers = {"read_csv", "read_parquet", "read_schema", "ParquetFile", "ParquetDataset", "read_table"}
    found = {
        path.relative_to(ROOT).as_posix()
        for path, nodes_of_file in nodes.items()
        for node in nodes_of_file
        if path.parts[len(ROOT.parts)] == "dse"
        and isinstance(node, ast.Call)
        and ast.unparse(node.func).partition(".")[0] in ("pd", "pandas", "pq", "pyarrow")
        and getattr(node.func, "attr", "") in readers
        and not ast.unparse(node).endswith(("csv')), dtype={'group': str})", ".study.csv')), keep_default_na=False)"))
    }
    assert found == {"dse/core/tables.py"}
