"""`dse docs`: the built pages of the documentation, in the browser; or a page of answers for models of one's own."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from dse.cli.commands import OptionText, progress_bar
from dse.core import files
from dse.core.errors import InputError, OutputError, show
from dse.core.field import NAMES

Command = TypeVar("Command", bound=Callable[..., object])
#: where a checkout has the sources and the built pages
ROOT = Path(__file__).parents[2]
GET = (
    "dse docs --models A,B --devices C,D --out DIR writes the page of answers; all pages, in a checkout: "
    'pip install -c constraints.txt -e ".[docs]", then dse docs'
)


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


def write_answers(out: str, given: dict[str, Any]) -> str:
    """Write the page of answers, and that of accuracy, into directory `out`; the path of the first. Raises DseError."""
    from dse.report import answers

    made = answers.pages(answers.choices(**given), progress_bar)
    return files.publish(out, {name: text.encode() for name, text in made.items()})[0]


def _names(name: str, help: str, metavar: str = "A,B") -> Callable[[Command], Command]:
    return click.option(f"--{name}", type=OptionText(NAMES), metavar=metavar, help=help)


@click.command(short_help="Open the documentation, or write the page of answers.")
@click.option("--build", "again", is_flag=True, help="Build the pages anew, from docs/ and the code.")
@click.option("--path", "only_path", is_flag=True, help="Print where the first page is, and open nothing.")
@click.option("--out", metavar="DIR", help="Write the page of answers, answers.html, into a directory.")
@_names("models", "With --out: models of the page (names or files); default: five of today.")
@_names("devices", "With --out: devices of the page (names or files); default: five of today.")
@_names("formats", "With --out: KV formats (`dse list quantizers`); default: fp16,fp8,nvfp4,int4_per_token_head.")
@_names("lengths", "With --out: tokens of prompts and answers; default: three kinds of use.", "8192+1024,...")
def docs(again: bool, only_path: bool, out: str | None, **given: tuple[str, ...] | None) -> None:
    """Open the documentation in the browser; it is built first where it has not been.

    The pages lie in site/ of a checkout and need no network. `--build` after a change of docs/ or of the code.

    With --out, which needs no checkout, write a page that answers without an install: which format of keys and values,
    on how many devices, within limits of time; beside it a page on how far off that is.
    """
    import webbrowser

    said = {name: names for name, names in given.items() if names is not None}
    if out is None and said:
        name, names = next(iter(said.items()))
        raise InputError(f"{name} = {show(','.join(names))}: has no effect without --out: add --out DIR")
    if out is not None:
        if again:
            raise InputError("build: has no effect with --out: leave it out")
        click.echo(write_answers(out, said))
        return
    page = ROOT / "site" / "index.html"
    if again or not page.exists():
        build(ROOT)
    if only_path or not webbrowser.open(page.as_uri()):
        click.echo(page)
