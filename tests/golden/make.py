"""Record the golden tables anew, or say what would change: `python tests/golden/make.py [--diff]`."""

import argparse
import subprocess
import sys
from pathlib import Path

#: the checkout that this file lies in
ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from golden import commands, designs, tables  # noqa: E402

#: each table with its seed, its size, and whether papers' conventions hold in it
TABLES = {
    "designs": (tables.DESIGNS, designs.SEED, designs.N_DESIGNS, False),
    "papers": (tables.PAPERS, designs.SEED + 1, designs.N_PAPERS, True),
}


def stored(path: Path, commit: str) -> bytes:
    """A stored file as it was at a commit; "" is the one in the working tree."""
    if not commit:
        return path.read_bytes()
    name = path.relative_to(ROOT).as_posix()
    return subprocess.run(["git", "-C", ROOT, "show", f"{commit}:{name}"], check=True, capture_output=True).stdout


def main() -> None:
    """Compare with what is stored, print what changed, and record it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--diff", nargs="?", const="", metavar="COMMIT", help="compare alone, with a commit's tables")
    parser.add_argument("--draw", action="store_true", help="draw the designs anew: after names or fields came or went")
    parser.add_argument("--only", choices=(*TABLES, "commands"))
    given = parser.parse_args()
    for name, (path, seed, n, is_papers) in TABLES.items():
        if given.only not in (None, name):
            continue
        if given.draw:
            before = [tables.Row(row, {}) for row in designs.drawn(seed, n, is_papers)]
        else:
            before = tables.read(stored(path, given.diff or ""))
        after = tables.today(before)
        if not given.draw:
            print(f"{name}:", "\n".join(tables.difference(before, after)))
        if given.diff is None:
            tables.write(path, after)
            print(f"{path}: {path.stat().st_size:,} bytes")
    if given.only in (None, "commands"):
        before_text = stored(commands.STORED, given.diff or "") if commands.STORED.exists() else b""
        found = commands.recorded()
        if before_text:
            print("commands:", "\n".join(commands.difference(commands.unpacked(before_text), found)))
        if given.diff is None:
            commands.STORED.write_bytes(commands.packed(found))
            print(f"{commands.STORED}: {commands.STORED.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
