"""Compare kernels_ref with golden vectors: `python tests/conformance/run.py DIR [--json]`.

Exit status 0 where every value is equal, 1 where one differs or a file is damaged, missing or of no method here, 2
where DIR cannot be used.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

#: the checkout that this file lies in
ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "kernels_ref")]

from conformance.compare import KINDS  # noqa: E402
from conformance.runner import Report, run, totals  # noqa: E402
from conformance.vectors import Unusable, shown  # noqa: E402


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; {self.format_usage().strip()}\n")


def as_text(report: Report) -> str:
    """The report as a table for each kind of oracle, what was not compared, and a last line."""
    lines = [f"{printable(report.folder)}: {report.n_files} files"]
    width = max([len(row.file) for row in report.rows], default=0)
    label = max([len(row.method) for row in report.rows], default=0)
    for kind, title in KINDS.items():
        rows = report.of_kind(kind)
        if rows:
            lines += ["", title, f"  {'file':{width}}  {'method':{label}}  {'values':>11}  {'mismatched':>10}"]
        for row in rows:
            line = f"  {row.file:{width}}  {row.method:{label}}  {row.compared:>11,}  {row.mismatched:>10,}"
            lines.append(f"{line}  {printable(row.problem)}".rstrip())
    if report.left_out:
        lines += ["", "not compared"]
        lines += [f"  {printable(what)}: {printable(why)}" for what, why in report.left_out.items()]
    lines.append("")
    for kind, (files, compared, mismatched) in totals(report).items():
        lines.append(f"{kind}: {files} files, {compared:,} values, {mismatched:,} mismatched")
    bad = len({row.file for row in report.rows if row.problem or row.mismatched})
    lines.append("all equal" if report.passed else f"FAILED: {bad} of {report.n_files} files")
    return "\n".join(lines)


def printable(text: str) -> str:
    """`text` with what is not printable escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def as_json(report: Report) -> str:
    """The report as one JSON object."""
    found = {
        "folder": report.folder,
        "n_files": report.n_files,
        "passed": report.passed,
        "totals": {
            kind: {"files": files, "compared": compared, "mismatched": mismatched}
            for kind, (files, compared, mismatched) in totals(report).items()
        },
        "rows": [asdict(row) for row in report.rows],
        "not_compared": report.left_out,
    }
    return json.dumps(found, indent=1)


def main(arguments: list[str] | None = None) -> int:
    """Run as a command; returns the exit status."""
    parser = _Parser(prog="python tests/conformance/run.py", description="Compare kernels_ref with golden vectors.")
    parser.add_argument("directory", metavar="DIR", help="a directory of golden vectors with a manifest.json")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        report = run(Path(given.directory))
        print(as_json(report) if given.json else as_text(report))
        sys.stdout.flush()
    except Unusable as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # the directory cannot be listed, the output cannot be written
        print(f"error: {shown(str(error))}", file=sys.stderr)
        return 2
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
