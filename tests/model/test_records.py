"""Records: filled by keyword, typed where they are declared."""

import ast
import re
from pathlib import Path

import dse

ROOT = Path(dse.__file__).parents[1]
#: records of more fields are filled by keyword, so that no two numbers change places
MOST_BY_POSITION = 5


def classes(nodes):
    """Fields and bases of the classes of a module, by name; only NamedTuples and dataclasses have fields."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            marks = [*bases, *(ast.unparse(decorator) for decorator in node.decorator_list)]
            is_record = any(mark.startswith(("NamedTuple", "dataclass")) for mark in marks)
            fields = [field.target.id for field in node.body if is_record and isinstance(field, ast.AnnAssign)]
            found[node.name] = fields, {base.rpartition(".")[2] for base in bases} - {node.name}
    return found


def n_fields(of, everywhere):
    """Number of fields of a record, those of its bases included."""
    fields, bases = of
    return len(fields) + max(
        (n_fields(one, everywhere) for base in bases for one in everywhere.get(base, [])), default=0
    )


def by_position(nodes):
    """Calls that fill a record of more than five fields by position, all but the first: file, line and name."""
    own = {path: classes(found) for path, found in nodes.items()}
    everywhere = {}
    for found in own.values():
        for name, record in found.items():
            everywhere.setdefault(name, []).append(record)
    for path, found in nodes.items():
        for node in found:
            if isinstance(node, ast.Call) and (
                len(node.args) > 1 or any(isinstance(a, ast.Starred) for a in node.args)
            ):
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                kinds = [own[path][name]] if name in own[path] else everywhere.get(name, [])
                if kinds and all(n_fields(record, everywhere) > MOST_BY_POSITION for record in kinds):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"


def test_records_of_many_fields_are_filled_by_keyword(nodes):
    """In the tree, and in what docs/contributing says to write."""
    pages = {
        page: list(ast.walk(ast.parse("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)))))
        for page in sorted((ROOT / "docs/contributing").glob("*.md"))
    }
    assert list(by_position({**nodes, **pages})) == []


def test_a_record_filled_by_position_is_seen():
    source = "class Wave(NamedTuple):\n" + "".join(f"    t{i}: float\n" for i in range(6)) + "Wave(*range(6))\n"
    assert list(by_position({ROOT / "model" / "toy.py": list(ast.walk(ast.parse(source)))})) == ["model/toy.py:8: Wave"]


def test_fields_of_a_base_count():
    source = "@dataclass\nclass Base:\n" + "".join(f"    t{i}: float\n" for i in range(5))
    source += "@dataclass\nclass Longer(Base):\n    more: float\nBase(1, 2)\nLonger(1, 2)\n"
    assert list(by_position({ROOT / "toy.py": list(ast.walk(ast.parse(source)))})) == ["toy.py:12: Longer"]
