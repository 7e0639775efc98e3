"""Records of the model: filled by keyword, typed where they are declared."""

import ast
from pathlib import Path

import dse

ROOT = Path(dse.__file__).parent
#: records of more fields are filled by keyword, so that no two numbers change places
MOST_BY_POSITION = 5
FOLDERS = ("model", "sweep", "serving", "explorer")


def records(tree):
    """Fields of the NamedTuples and dataclasses of a module, by name; none of other classes."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            marks = [ast.unparse(one) for one in (*node.bases, *node.decorator_list)]
            is_record = any(mark.startswith(("NamedTuple", "dataclass")) for mark in marks)
            fields = [field.target.id for field in node.body if is_record and isinstance(field, ast.AnnAssign)]
            found[node.name] = fields
    return found


def by_position(trees):
    """Calls that fill a record of more than five fields by position, all but the first: file, line and name."""
    own = {path: records(tree) for path, tree in trees.items()}
    everywhere = {}
    for found in own.values():
        for name, fields in found.items():
            everywhere.setdefault(name, []).append(fields)
    for path, tree in trees.items():
        if path.relative_to(ROOT).parts[0] not in FOLDERS:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (
                len(node.args) > 1 or any(isinstance(a, ast.Starred) for a in node.args)
            ):
                name = ast.unparse(node.func).rpartition(".")[2]
                kinds = [own[path][name]] if name in own[path] else everywhere.get(name, [])
                if kinds and all(len(fields) > MOST_BY_POSITION for fields in kinds):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"


def test_records_of_many_fields_are_filled_by_keyword():
    trees = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    assert list(by_position(trees)) == []


def test_a_record_filled_by_position_is_seen():
    source = "class Wave(NamedTuple):\n" + "".join(f"    t{i}: float\n" for i in range(6)) + "Wave(*range(6))\n"
    assert list(by_position({ROOT / "model" / "toy.py": ast.parse(source)})) == ["model/toy.py:8: Wave"]
