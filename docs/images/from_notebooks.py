"""Executes the notebooks: stores what their cells print and draw, and draws their pictures for the docs.

`python docs/images/from_notebooks.py [01 ...]`; needs the extras `test` and `export`, and a Chrome or Chromium. A
figure is stored as PNG, which a page that runs no script shows; running the notebook draws it anew, to be pointed at.
"""

import base64
import io
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
import plotly.io
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLOTLY = "application/vnd.plotly.v1+json"
MAX_BYTES = 100_000


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook as a run leaves it."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        for spec in path.parent.glob("*.toml"):
            shutil.copy(spec, folder)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": folder}
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute(env=env)
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                own = output if "text" in output else output.get("data", {})
                own.update({kind: plain(text) for kind, text in own.items() if isinstance(text, str)})
    return notebook


def plain(text: str) -> str:
    """A text without what another run would have otherwise: temporary folders, and addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+|/\S*/tmp\w+/", "", text)


def png(drawing: dict) -> bytes:
    """A PNG of 256 colors, which keeps it small."""
    content = plotly.io.from_json(json.dumps(drawing)).to_image(format="png")
    image = Image.open(io.BytesIO(content)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def shown(outputs: list) -> list:
    """Outputs as they are stored: what is printed, tables, and figures as PNG; no progress, no times of a run."""
    kept = []
    for output in outputs:
        data = output.get("data", {})
        if output.output_type == "stream" and output.name == "stderr":
            continue
        if PLOTLY in data:
            content = png(data[PLOTLY])
            if len(content) > MAX_BYTES:
                raise SystemExit(f"a figure of {len(content):,} bytes: at most {MAX_BYTES:,}: draw fewer points")
            output.data = {"image/png": base64.b64encode(content).decode()}
        kept.append(output)
    return kept


def main(wanted: list[str]) -> None:
    """Store the outputs and write the pictures of all notebooks, or of those whose names begin as `wanted`."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if wanted and not path.name.startswith(tuple(wanted)):
            continue
        notebook = executed(path)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for count, cell in enumerate(code, 1):
            cell.outputs, cell.execution_count = shown(cell.outputs), count
            cell.metadata.pop("execution", None)
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = count
        notebook.metadata.pop("widgets", None)
        (picture,) = (cell for cell in code if "picture" in cell.metadata.get("tags", []))
        content = next(
            base64.b64decode(o.data["image/png"]) for o in picture.outputs if "image/png" in o.get("data", {})
        )
        target = HERE / f"notebook-{path.stem}.png"
        target.write_bytes(content)
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size:,} bytes, {target.name}: {len(content):,}")


if __name__ == "__main__":
    main(sys.argv[1:])
