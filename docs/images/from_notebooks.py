"""Draws the pictures of the notebooks for the docs: executes each and keeps the figure of its cell tagged `picture`.

`python docs/images/from_notebooks.py [01 ...]`; needs the extras `test` and `export`, and a Chrome or Chromium.
"""

import io
import json
import os
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


def figure(path: Path) -> dict:
    """The picture of a notebook, as plotly stores it."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        for spec in path.parent.glob("*.toml"):
            shutil.copy(spec, folder)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": folder}
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute(env=env)
    (cell,) = (cell for cell in notebook.cells if "picture" in cell.metadata.get("tags", []))
    return next(output["data"][PLOTLY] for output in cell.outputs if PLOTLY in output.get("data", {}))


def png(drawing: dict) -> bytes:
    """A PNG of 256 colors, which keeps it small."""
    content = plotly.io.from_json(json.dumps(drawing)).to_image(format="png")
    image = Image.open(io.BytesIO(content)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main(wanted: list[str]) -> None:
    """Write the pictures of all notebooks, or of those whose names begin as `wanted`."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if wanted and not path.name.startswith(tuple(wanted)):
            continue
        content = png(figure(path))
        if len(content) > MAX_BYTES:
            raise SystemExit(f"{path.name}: {len(content):,} bytes: at most {MAX_BYTES:,}: draw fewer points")
        target = HERE / f"notebook-{path.stem}.png"
        target.write_bytes(content)
        print(f"{target}: {len(content):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
