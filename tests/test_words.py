"""The words of the code: docstrings that are sentences, one class a name, modules by their names, the formatter on."""

import ast
import collections
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("dse", "kernels_ref", "hwspecs") for path in (ROOT / package).rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}
#: beginnings of a docstring that names a thing where a sentence says what is done
BEGINNINGS = re.compile(r"(What|Which|How|The same|Of)\b")
#: names by which everybody imports these
CONVENTIONS = {
    ("numpy", "np"),
    ("pandas", "pd"),
    ("pyarrow", "pa"),
    ("pyarrow.parquet", "pq"),
    ("pyarrow.compute", "pc"),
    ("numba", "nb"),
    ("streamlit", "st"),
    ("plotly.graph_objects", "go"),
    ("matplotlib.pyplot", "plt"),
}
#: a table of numbers or a matrix is read by its columns
MOST_UNFORMATTED = 60


def documented(tree):
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    return [text for node in ast.walk(tree) if isinstance(node, kinds) and (text := ast.get_docstring(node))]


def aliases(tree):
    for node in ast.walk(tree):
        for name in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            module = ".".join(filter(None, (getattr(node, "module", None), name.name)))
            if name.asname and (module, name.asname) not in CONVENTIONS:
                yield f"{module} as {name.asname}"


def test_docstrings_are_sentences():
    assert not [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, tree in TREES.items()
        for text in documented(tree)
        if BEGINNINGS.match(text)
    ]


def test_a_class_name_means_one_thing():
    names = collections.Counter(
        node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, n in names.items() if n > 1]


def test_modules_keep_their_names():
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, tree in TREES.items() for name in aliases(tree)]


def test_the_formatter_is_on():
    marked = re.compile(r"# fmt: (skip|off)")
    counts = [len(marked.findall(path.read_text())) for path in sorted(ROOT.rglob("*.py")) if ".venv" not in path.parts]
    assert sum(counts) - len(marked.findall(Path(__file__).read_text())) <= MOST_UNFORMATTED
