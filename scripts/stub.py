"""Write dse/__init__.pyi, by which editors complete the functions of `import dse`, and the names in dse/__init__.py.

Run it after a change of a public function or of a field of an operation: python scripts/stub.py.
"""

import ast
import inspect
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dse
from dse import api
from dse.model.results import RESULTS
from dse.model.results.declare import FLAG, NAME, NUMBER, WHOLE
from dse.model.results.declare import NAMES as NAMES_OF

ROOT = Path(__file__).parents[1]
FACE = ROOT / "dse" / "__init__.py"
STUB = ROOT / "dse" / "__init__.pyi"
NAMES = sorted(api.__all__)
#: names that the stub gives on, and the class that it adds attributes to
_AS = {name: f" as {name}" for name in ("Workload", "errors", "units")} | {"DesignResults": " as _DesignResults"}
#: modules whose imports name the types of the functions
SOURCES = (ROOT / "dse" / "api.py", *sorted((ROOT / "dse" / "operations").glob("*.py")))


def text() -> str:
    """The stub: every public function with its signature and its text."""
    public = {name: getattr(api, name) for name in NAMES}
    body = "\n".join(_function(name, one) for name, one in public.items() if inspect.isfunction(one))
    head = [f'"""{(dse.__doc__ or "").splitlines()[0]}"""', *_imports(body)]
    named = [f"__all__ = {NAMES!r}", "__version__: str", "results: dict[str, Result]"]
    return "\n".join([*head, *named, _design_results(), body])


def _design_results() -> str:
    """The class of `evaluate` with an attribute for each result; `Any` stands for None."""
    types = {NAME: "str | Any", FLAG: "bool", WHOLE: "int | Any", NUMBER: "float | Any", NAMES_OF: "list[str]"}
    lines = ["class DesignResults(_DesignResults):", f'    """{inspect.getdoc(api.DesignResults)}\n"""']
    for one in RESULTS.values():
        unit = f" ({one.unit})" if one.unit not in ("", "1") else ""
        lines += [f"    {one.name}: {types[one.dtype]}", f'    """{one.title}{unit}"""']
    return "\n".join([*lines, ""])


def _function(name: str, function: Callable[..., Any]) -> str:
    signature, parameters, is_keyword = inspect.signature(function), [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            parameters.append("*")
        is_keyword = is_keyword or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        default = "" if one.default is one.empty else f" = {one.default!r}"
        parameters.append(f"{stars}{one.name}: {one.annotation}{default}")
    doc = textwrap.indent(f'"""{inspect.getdoc(function)}\n"""', "    ")
    return f"def {name}({', '.join(parameters)}) -> {signature.return_annotation}:\n{doc}\n"


def _imports(body: str) -> Iterator[str]:
    """The imports of the names that the signatures use, as the declarations have them."""
    used = set(re.findall(r"\w+", re.sub(r'""".*?"""', "", body, flags=re.S)))
    used |= {"Any", "DesignResults", "Result", "Workload", "errors", "units"}
    known = {
        "Any": "typing",
        "Result": "dse.model.results",
        "LabResult": "dse.operations.dumps",
        "errors": "dse.core",
        "units": "dse.core",
        "Literal": "typing",
    }
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                known |= {alias.name: node.module for alias in node.names if alias.name[0].isupper()}
    yield "import pandas as pd"
    for name, module in sorted(known.items(), key=lambda item: (item[1], item[0])):
        if name in used:
            yield f"from {module} import {name}{_AS.get(name, '')}"


if __name__ == "__main__":
    STUB.write_text(text())
    FACE.write_text(re.sub(r"(?s)__all__ = \[.*?\]", f"__all__ = {NAMES!r}", FACE.read_text(), count=1))
    subprocess.run(["ruff", "check", "--fix-only", "--quiet", str(STUB)], check=True)
    subprocess.run(["ruff", "format", "--quiet", str(STUB), str(FACE)], check=True)
