"""`dse docs`: the built pages of the documentation, in the browser."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from dse.core.errors import InputError, OutputError

#: where a checkout has the sources and the built pages
ROOT = Path(__file__).parents[2]
GET = 'in a checkout: pip install -c constraints.txt -e ".[docs]", then dse docs'


def build(root: Path) -> None:
    """Build the pages of a checkout into site/, strictly and without a network.

    Raises InputError where the sources or mkdocs are missing, OutputError where mkdocs fails.
    """
    if not (root / "mkdocs.yml").exists():
        raise InputError(f"{root}: has no documentation, which is not part of an installed package: {GET}")
    if any(find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")):
        raise InputError(f"the documentation is not built, and mkdocs is not installed: {GET}")
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"],  # with --quiet it would count no warnings
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
        raise OutputError(f"mkdocs: {' '.join(' '.join(said or [done.stderr]).split())}")


@click.command(short_help="Open the documentation.")
@click.option("--build", "again", is_flag=True, help="Build the pages anew, from docs/ and the code.")
@click.option("--path", "only_path", is_flag=True, help="Print where the first page is, and open nothing.")
def docs(again: bool, only_path: bool) -> None:
    """Open the documentation in the browser; it is built first where it has not been.

    The pages lie in site/ of a checkout and need no network. `--build` after a change of docs/ or of the code.
    """
    import webbrowser

    page = ROOT / "site" / "index.html"
    if again or not page.exists():
        build(ROOT)
    if only_path or not webbrowser.open(page.as_uri()):
        click.echo(page)
