"""A hook of mkdocs: pages made from the code as the site is built (options, results, formulas, devices, notebooks).

Each function returns the Markdown of a page. Nothing here knows a number or an option: all of it is read where the tool
reads it, so that no page can fall behind.
"""

import html
import importlib
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import click

from dse.core import units
from dse.core.compiling import FORMULAS
from dse.model import formulas
from dse.model.results import RESULTS
from dse.model.results.ring import RING
from dse.report import answers, listing, servers
from dse.specs import catalog, workload

ROOT = Path(__file__).parents[1]
#: how rows of `dse show` begin that are no numbers of the device itself
FITS = ("stacks.", "links.", "server.", "implementation.")
KINDS = {
    "datasheet": "printed by the vendor",
    "published": "printed in a paper or by others",
    "measured": "measured",
    "derived": "follows from other numbers",
    "assumed": "assumed: nobody printed it",
}


def cell(text: object) -> str:
    """A text as a cell of a table: no mark-up, no bar."""
    return re.sub(r"\s+", " ", html.escape(str(text), quote=False)).replace("|", "&#124;").replace("*", "\\*")


def table(heads: str, rows: list[list[str]]) -> str:
    """A table with the headings in `heads`, parted by commas."""
    lines = [heads.split(","), ["---"] * len(heads.split(",")), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def commands(group: click.Group, words: str) -> list[tuple[str, click.Command]]:
    """All commands under a group with the words that call them, groups before what they hold."""
    found = []
    for name, command in sorted(group.commands.items()):
        found.append((f"{words} {name}", command))
        if isinstance(command, click.Group):
            found += commands(command, f"{words} {name}")
    return found


def prose(text: str) -> str:
    """The docstring of a command as paragraphs; lines after \\b stay as they are."""
    parts = re.split(r"\n\s*\n", re.sub(r"\f.*", "", text or "", flags=re.S))
    return "\n\n".join(f"```text\n{p[2:].strip()}\n```" if p.startswith("\b\n") else cell(p) for p in parts)


def options(words: str, command: click.Command) -> str:
    """The table of a command's arguments and options."""
    context = click.Context(command, info_name=words)
    rows = []
    for given in command.params:
        name, text = given.make_metavar(context), "required" if given.required else "may be left out"
        if isinstance(given, click.Option):
            name, text = given.get_help_record(context) or ("", "")
            name = name.replace(" / ", ", ")
        if name:
            rows.append(
                [f"`{name}`".replace("|", "&#124;") if "|" not in name else f"<code>{cell(name)}</code>", cell(text)]
            )
    return table("option,what it says", rows) if rows else ""


def cli_page() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    from dse.cli.main import cli

    lines = [
        "# Commands and options\n",
        "What `dse COMMAND --help` prints, made from the same source. `--debug` after any command shows the"
        " traceback of"
        " an error. Exit status: 0 done, 2 bad input, 3 in use by another process, 4 a file cannot be written, 5"
        " beyond a"
        " limit, 130 stopped.\n",
    ]
    for words, command in commands(cli, "dse"):
        usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=words)))
        lines += [f"## {words}\n", f"```text\n{words} {usage}\n```\n", prose(command.help or ""), ""]
        if not isinstance(command, click.Group):
            lines.append(options(words, command))
    return "\n".join(lines)


def results_page() -> str:
    """Every result with its unit, its words, and the numbers of a device that it reads."""
    rows = [
        [
            f'<a id="{one.name}"></a>`{one.name}`',
            cell(one.unit or "-"),
            cell(one.title),
            one.lines[0].section if one.lines else "-",
            cell(_asked(one.name) or ", ".join(dict.fromkeys(one.reads[:6])) + (", ..." if len(one.reads) > 6 else "")),
        ]
        for one in RESULTS.values()
    ]
    ring = [
        [f"`{one.name}`", one.unit, line.words, line.section, cell(how.equation)]
        for one in RING.values()
        if one.lines and (line := one.lines[0]) and (how := one.explain(None))
    ]
    return (
        "# Results\n\nEvery result of a design: the keys of `dse point --json` and `dse.evaluate`, the columns of"
        " sweeps and"
        " reports, the names that `--explain` takes. Names carry their unit: `_bytes` B, `_s` s, `_tokens`"
        " tokens, `_bits`"
        " bits, `_flops` FLOP, `_frac` and `_share` 1, `_per_s` per second, `_w` W; counts begin with `n_`. GB is"
        " 10^9 B,"
        " GiB is 2^30 B, 1K tokens are 1024. Made from `dse/model/results`; inputs of formulas are under"
        " [Symbols](symbols.md), equations under [Formulas](formulas.md).\n\n"
        + table("name,unit,what it is,section of `dse point`,option; or numbers of the device that it reads", rows)
        + "\n## A ring of devices\n\nKeys of `dse ring --json`, beside those that say the same of one device.\n\n"
        + table("name,unit,what it is,section of `dse ring`,equation", ring)
    )


def _asked(name: str) -> str:
    """The help of a field of the workload."""
    return f"given: {workload.ASKED[name].help}" if name in workload.ASKED else ""


def formulas_page() -> str:
    """Every formula with its equation, unit and source."""
    for module in pkgutil.iter_modules(formulas.__path__):
        importlib.import_module(f"dse.model.formulas.{module.name}")
    rows = [
        [f"`{name}`", cell(one.unit), f"<code>{cell(one.equation)}</code>", cell(one.source)]
        for name, one in sorted(FORMULAS.items())
    ]
    return (
        "# Formulas\n\nEvery equation of the model, a function of plain numbers in SI units in `dse/model/formulas`;"
        " `--explain RESULT` shows those of a result with the values of your design. [The"
        " model](../explanation/model.md)"
        " has them in their order.\n\n" + table("formula,unit,equation,source", rows)
    )


def devices_page() -> str:
    """Every shipped device on a line; each has a page of its own."""
    rows = [
        [f"[{one['name']}](devices/{one['name'].lower()}.md)", cell(one["title"]), *_head(one), cell(one["kernels"])]
        for one in listing.list_devices()
    ]
    return (
        "# Devices\n\nEach has a page with all of its numbers, and where each is from. Kernels: the stacks of"
        " which kernel"
        " times were fitted, or the device whose kernels it runs by.\n\n"
        + table("device,title,memory,bandwidth,dense FP16,power,kernels", rows)
    )


def device_page(name: str) -> str:
    """All numbers of a device as `dse show` has them, with kind and source; fits apart, beneath."""
    rows = [
        [
            f"`{row['name']}`",
            cell(_number(row["value"])),
            cell(row["unit"] or "-"),
            row["kind"] or "-",
            cell(row["source"]),
        ]
        for row in listing.show(name)
    ]
    fits = [row for row in rows if row[0].strip("`").startswith(FITS)]
    heads = "number,value,unit,kind,source"
    page = (
        f"# {catalog.device(name).name}\n\n{cell(catalog.device(name).title)}; [all devices](../devices.md)."
        f" `dse show {name}` prints this table. Kinds: "
        + "; ".join(f"`{kind}` {means}" for kind, means in KINDS.items())
        + ".\n\n"
        + table(heads, [row for row in rows if row not in fits])
    )
    if fits:
        page += (
            "\n## Fits and servers\n\nHow they were made: [calibration](../../explanation/calibration.md).\n\n"
            + table(heads, fits)
        )
    return page


def _head(one: dict) -> list[str]:
    shown = (
        ("capacity_bytes", "B"),
        ("bandwidth_bytes_per_s", "B/s"),
        ("peak_flops_per_s", "FLOP/s"),
        ("board_power_w", "W"),
    )
    return ["-" if one[name] is None else cell(units.human(one[name], unit)) for name, unit in shown]


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def formats_page() -> str:
    """Every quantizer, every implementation that runs one, every token policy, as `dse list` has them."""
    quantizers = [
        [
            f"`{one['name']}`",
            f"{one['effective_bits']:.4g}" if one["effective_bits"] is not None else "-",
            cell(one["parameters"]),
            cell(one["in_engines"]),
            cell(one["source"]),
        ]
        for one in listing.list_quantizers()
    ]
    kernels = [
        [f"`{one['name']}`", *(cell(one[name]) for name in ("title", "methods", "runs on", "reaches"))]
        for one in listing.list_implementations()
    ]
    policies = [
        [f"`{one['name']}`", *(cell(one[name]) for name in ("parameters", "source", "validity"))]
        for one in listing.list_tokens()
    ]
    return (
        "# Formats, implementations, token policies\n\n## Formats\n\nKV quantizers and formats of engines with their"
        " parameters; bits are effective bits of Llama-2-7B's keys and values. [Bit by"
        " bit](../explanation/quantizers.md).\n\n"
        + table("name,bits,parameters,in engines,source", quantizers)
        + "\n## Implementations\n\nWhose kernels run a format, and what they reach."
        " [How one is chosen and fitted](../explanation/implementations.md).\n\n"
        + table("name,title,methods,runs on,reaches", kernels)
        + "\n## Token policies\n\nWhich tokens a layer stores and reads (`--tokens`).\n\n"
        + table("name,parameters,source,what it leaves out", policies)
    )


def notebook_page(path: Path) -> str:
    """A notebook's texts and code; its picture, which tests hold to its code, follows the cell that draws it."""
    lines = []
    for one in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(one["source"])
        lines.append(text if one["cell_type"] == "markdown" else f"```python\n{text}\n```")
        if "picture" in one["metadata"].get("tags", []):
            lines.append(f"![The figure that this cell draws](../images/notebook-{path.stem}.png)")
    note = f"*`notebooks/{path.name}`: open it with Jupyter to run it. A test runs every cell and its assertions.*"
    return "\n\n".join([lines[0], note, *lines[1:]]) + "\n"


def notebooks() -> list[Path]:
    """The notebooks in their order."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


#: pages by their place in the site
PAGES = {
    "reference/cli.md": cli_page,
    "reference/results.md": results_page,
    "reference/formulas.md": formulas_page,
    "reference/devices.md": devices_page,
    "reference/formats.md": formats_page,
}
#: files that are no Markdown
FILES = (answers.PAGE, servers.PAGE, "plotly.min.js")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages: mkdocs calls this once it has listed docs/."""
    from mkdocs.structure.files import File  # the pages above are text, and made without it

    made = {place: page() for place, page in PAGES.items()} | answers.pages(answers.choices(), home="index.html")
    made |= {f"reference/devices/{name}.md": device_page(name) for name in catalog.device_files()}
    made |= {f"notebooks/{path.stem}.md": notebook_page(path) for path in notebooks()}
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    return files
