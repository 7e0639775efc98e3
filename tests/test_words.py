"""The words of the code: docstrings that are sentences, one class a name, modules by their names, the formatter on.

Folders that are not clean yet stand here with how many places they still have, which may only become fewer.
"""

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

DOCSTRINGS_LEFT = {
    "dse/core": 2,
    "dse/measure": 33,
    "dse/model": 103,
    "dse/operations": 8,
    "dse/quantizers": 7,
    "dse/questions": 38,
    "dse/serving": 17,
    "dse/sweep": 26,
    "dse/validate": 18,
    "kernels_ref": 19,
    "kernels_ref/conformance": 5,
    "kernels_ref/oaken": 3,
}
ALIASES_LEFT = {
    "dse": 1,
    "dse/explorer": 33,
    "dse/figures": 11,
    "dse/measure": 22,
    "dse/model": 2,
    "dse/operations": 2,
    "dse/questions": 13,
    "dse/report": 33,
    "dse/serving": 10,
    "dse/sweep": 46,
    "dse/validate": 14,
    "kernels_ref/conformance": 1,
}
CLASSES_LEFT = set(
    [
        "Answer",
        "Asked",
        "Axis",
        "Bench",
        "Case",
        "Design",
        "Drawn",
        "Estimate",
        "Experts",
        "Finding",
        "Fit",
        "Found",
        "Judged",
        "KVCache",
        "Kernel",
        "LanguageModel",
        "Latent",
        "Layer",
        "Layout",
        "Limits",
        "Load",
        "Measured",
        "Operation",
        "Outcome",
        "Page",
        "Pair",
        "Piece",
        "Point",
        "Request",
        "Result",
        "Row",
        "Run",
        "Served",
        "Source",
        "Stored",
        "Tables",
        "Tensor",
        "Text",
        "View",
        "_Held",
        "_Reader",
    ]
)


def folder_of(path):
    """The package and the folder below it."""
    return "/".join(path.relative_to(ROOT).parts[:2]) if path.parent.parent != ROOT else path.parent.name


def by_folder(places):
    """Places by folder, as many as there are."""
    counts = collections.defaultdict(list)
    for path, what in places:
        counts[folder_of(path)].append(f"{path.relative_to(ROOT)}: {what}")
    return counts


def too_many(places, left):
    """Lines of the folders that have more than may be left."""
    return [line for folder, lines in by_folder(places).items() if len(lines) > left.get(folder, 0) for line in lines]


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
    begun = [
        (path, text.partition("\n")[0])
        for path, tree in TREES.items()
        for text in documented(tree)
        if BEGINNINGS.match(text)
    ]
    assert not too_many(begun, DOCSTRINGS_LEFT)


def test_a_class_name_means_one_thing():
    names = collections.Counter(
        node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert {name for name, n in names.items() if n > 1} <= CLASSES_LEFT


def test_modules_keep_their_names():
    assert not too_many([(path, name) for path, tree in TREES.items() for name in aliases(tree)], ALIASES_LEFT)


def test_the_formatter_is_on():
    marked = re.compile(r"# fmt: (skip|off)")
    counts = [len(marked.findall(path.read_text())) for path in sorted(ROOT.rglob("*.py")) if ".venv" not in path.parts]
    assert sum(counts) - len(marked.findall(Path(__file__).read_text())) <= MOST_UNFORMATTED
