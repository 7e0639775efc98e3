"""Every notebook runs from its first cell to its last without an error, and is stored with what a run prints."""

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: a cell that takes longer than this is given up
GIVE_UP_S = 300
PICTURES = ROOT / "docs" / "images"
PLOTLY = "application/vnd.plotly.v1+json"


def test_there_are_notebooks():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_with_pictures_that_need_no_script(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for cell in code for output in cell.outputs for kind in output.get("data", {})}
    assert "image/png" in kinds
    assert kinds <= {"image/png", "text/plain", "text/html", "text/markdown"}
    assert path.stat().st_size < 700_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_a_question_with_checks_and_a_picture(path):
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].source.splitlines()[2].startswith("**")
    assert cells[-1].source.startswith("## What to change next")
    assert any("assert " in cell.source for cell in cells if cell.cell_type == "code")
    assert sum("picture" in cell.metadata.get("tags", []) for cell in cells) == 1
    picture = PICTURES / f"notebook-{path.stem}.png"
    assert picture.stat().st_size <= 100_000
    page = (ROOT / "docs" / "notebooks" / "index.md").read_text()
    assert f"../images/{picture.name}" in page
    assert f"({path.stem}.md)" in page


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a directory of its own, beside copies of the files it reads; raises what a cell raises."""
    for spec in path.parent.glob("*.toml"):
        shutil.copy(spec, folder)
    env = {
        **os.environ,
        "IPYTHONDIR": str(folder / ".ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=GIVE_UP_S,
        startup_timeout=GIVE_UP_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=env)
    return notebook


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each code cell prints or shows as text; figures aside."""
    return [
        "".join(
            output.get("text", "") or output.data.get("text/markdown", output.data.get("text/plain", ""))
            for output in cell.outputs
            if output.get("name") != "stderr" and not {"image/png", PLOTLY} & set(output.get("data", {}))
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path):
    notebook = run(path, tmp_path)
    # temporary folders and addresses of objects are those of one run
    now = [re.sub(r" at 0x[0-9a-f]+|/\S*/tmp\w+/", "", text) for text in printed(notebook)]
    assert now == printed(nbformat.read(path, as_version=4)), "python docs/images/from_notebooks.py"
    figures = [
        cell for cell in notebook.cells for output in cell.get("outputs", []) if PLOTLY in output.get("data", {})
    ]
    assert [cell for cell in figures if "picture" in cell.metadata.get("tags", [])], "the picture is no figure"
