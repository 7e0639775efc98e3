"""Make the golden tables from the code as it is: `python tests/golden/make.py --out DIR`."""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: the checkout that this file lies in
ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from golden import adapter, commands, designs  # noqa: E402

#: largest share of designs that are refused, and in which not one request fits
MAX_REFUSED, MAX_INFEASIBLE = 0.06, 0.15
#: bits of the mantissa that stored floats keep: half a unit is 2.8e-14 of the number
MANTISSA_BITS = 44


def write_plans() -> None:
    """The plans by layer that designs name."""
    rng = random.Random(designs.SEED + 1)
    for n_layers in designs.PLAN_LAYERS:
        for number in range(designs.PLANS_EACH):
            path = adapter.GOLDEN / "inputs" / "plans" / f"{n_layers}-{number}.toml"
            path.write_text(designs.plan_text(rng, n_layers, number))


def evaluated() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Designs and their results; of refused and infeasible ones no more than the shares above."""
    rng = random.Random(designs.SEED)
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    left = {"refused": MAX_REFUSED, "infeasible": MAX_INFEASIBLE, "fits": 1.0}
    room = {kind: round(share * designs.N_DESIGNS) for kind, share in left.items()}
    while len(kept) < designs.N_DESIGNS:
        row = designs.design(rng)
        found = adapter.evaluate_row(row)
        kind = "refused" if "error" in found else "fits" if found["feasible"] else "infeasible"
        if room[kind]:
            room[kind] -= 1
            kept.append((row, found))
    return kept


def rounded(values: np.ndarray) -> np.ndarray:
    """Floats with the last bits of their mantissa rounded away; whole numbers below 2**44 keep all of theirs."""
    drop = 52 - MANTISSA_BITS
    whole = values.astype(np.float64).view(np.int64)
    return ((whole + (1 << (drop - 1))) >> drop << drop).view(np.float64)


def column(values: list[Any], exact: bool) -> tuple[pa.Array, str]:
    """A column and how to read it: values as they are, whole numbers beyond int64 and mixed numbers as text."""
    types = {type(value) for value in values if value is not None}
    if types == {float}:
        known = np.array([0.0 if value is None else value for value in values])
        return pa.array(
            known if exact else rounded(known), pa.float64(), mask=np.array([value is None for value in values])
        ), "float"
    if types == {int} and all(value is None or abs(value) < 2**63 for value in values):
        return pa.array(values, pa.int64()), "int"
    if types <= {int, float} and types:
        return pa.array([None if value is None else repr(value) for value in values], pa.string()), "number"
    if types == {bool}:
        return pa.array(values, pa.bool_()), "bool"
    if types <= {str}:
        return pa.array(values, pa.string()), "text"
    raise TypeError(f"a column of {types}")


def commit() -> str:
    """The commit of the checkout whose package is imported; "+" where files of the package differ from it."""
    import dse

    home = Path(dse.__file__).parent.parent

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", home, *args], check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "dse", "kernels_ref", "hwspecs")
    return git("log", "-1", "--format=%H", "--", "dse", "kernels_ref", "hwspecs") + ("+" if changed else "")


def write_designs(path: Path) -> None:
    """The table of designs: inputs `in.NAME`, then results, then `error` of refused designs."""
    kept = evaluated()
    columns: dict[str, Any] = {f"in.{name}": [row[name] for row, _ in kept] for name in kept[0][0]}
    for name in [*adapter.result_names(), "error"]:
        columns[name] = [found.get(name) for _, found in kept]
    made = {name: column(values, exact=name.startswith("in.")) for name, values in columns.items()}
    kinds = {name: kind for name, (_, kind) in made.items()}
    table = pa.table({name: array for name, (array, _) in made.items()})
    about = {
        "commit": commit(),
        "seed": str(designs.SEED),
        "kinds": json.dumps(kinds),
        "made_by": "python tests/golden/make.py",
    }
    split = {name for name, kind in kinds.items() if kind == "float" and len(set(columns[name])) > 700}
    pq.write_table(
        table.replace_schema_metadata(about),
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in columns if name not in split],
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
    )
    counts = {"refused": sum("error" in found for _, found in kept)}
    counts["infeasible"] = sum(found.get("feasible") is False for _, found in kept)
    print(f"{path}: {path.stat().st_size:,} bytes, {len(kept):,} designs, {counts}")


def write_commands(path: Path) -> None:
    """What commands print and which tables they write, by group; and the numbers of explanations."""
    found: dict[str, Any] = {"commit": commit(), "made_by": "python tests/golden/make.py", "groups": {}}
    for name in commands.GROUPS:
        with tempfile.TemporaryDirectory() as folder:
            found["groups"][name] = commands.run_group(name, Path(folder))
        wrong = [one["argv"] for one in found["groups"][name] if one["output"].startswith("exit status")]
        print(f"  {name}: {len(found['groups'][name])} commands, {len(wrong)} refused", *wrong[:20], sep="\n    ")
    found["explained"] = [{"argv": argv, "numbers": commands.explained(argv)} for argv in commands.EXPLAINED]
    content = json.dumps(found, separators=(",", ":")).encode()
    with pa.output_stream(str(path), compression=None) as out:
        out.write(pa.Codec("zstd", compression_level=19).compress(content))
    print(f"{path}: {path.stat().st_size:,} bytes of {len(content):,}")


def main() -> None:
    """Write the tables into DIR."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("designs", "commands"))
    given = parser.parse_args()
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    write_plans()
    if given.only != "commands":
        write_designs(out / "designs.parquet")
    if given.only != "designs":
        write_commands(out / "commands.json.zst")


if __name__ == "__main__":
    sys.exit(main())
