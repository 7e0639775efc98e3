"""The words of the code: docstrings that are sentences, one class a name, modules by their names, the formatter on."""

import ast
import collections
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
    ("dse.specs.tokens", "token_policies"),  # beside arrays of tokens
}
#: a table of numbers or a matrix is read by its columns
MOST_UNFORMATTED = 60


@pytest.fixture(scope="module")
def shipped(nodes):
    return {
        path.relative_to(ROOT): found for path, found in nodes.items() if path.parts[len(ROOT.parts)] != "calibration"
    }


def documented(found):
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    return [text for node in found if isinstance(node, kinds) and (text := ast.get_docstring(node))]


def aliases(found):
    for node in found:
        for name in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            module = ".".join(filter(None, (getattr(node, "module", None), name.name)))
            if name.asname and (module, name.asname) not in CONVENTIONS:
                yield f"{module} as {name.asname}"


def test_docstrings_are_sentences(shipped):
    texts = [(path, text) for path, found in shipped.items() for text in documented(found)]
    assert not [f"{path}: {text.splitlines()[0]}" for path, text in texts if BEGINNINGS.match(text)]


def test_a_class_name_means_one_thing(shipped):
    classes = [node.name for found in shipped.values() for node in found if isinstance(node, ast.ClassDef)]
    assert not [name for name, n in collections.Counter(classes).items() if n > 1]


def test_modules_keep_their_names(shipped):
    assert not [f"{path}: {name}" for path, found in shipped.items() for name in aliases(found)]


def test_the_formatter_is_on():
    marked = re.compile(r"# fmt: (skip|off)")
    counts = [len(marked.findall(path.read_text())) for path in sorted(ROOT.rglob("*.py")) if ".venv" not in path.parts]
    assert sum(counts) - len(marked.findall(Path(__file__).read_text())) <= MOST_UNFORMATTED
