"""What was measured nearest to a design: rows as the shipped tables have them, and what is said where none are."""

import csv
from pathlib import Path

from dse.specs import catalog
from dse.specs.workload import Workload
from dse.validate import nearest

DATA = Path(nearest.__file__).parents[1] / "data"


def rows(name):
    with (DATA / name).open() as file:
        return list(csv.DictReader(file))


def of(device, model, **work):
    return nearest.nearest(catalog.device(device), catalog.model(model), Workload(batch=8, **work))


def test_a_measured_design_names_its_kernels_and_its_servers():
    sentence, found = of("h200", "qwen3-32b", stack="sglang", tp=2)
    kernels = {
        row["part"]: row
        for row in rows("silicon.csv")
        if (row["device"], row["stack"], row["size_class"]) == ("H200", "sglang", "like serving")
    }
    shown = [one for one in found if one.what.startswith("kernels")]
    assert sorted(one.mean for one in shown) == sorted(float(row["mean"]) for row in kernels.values())
    servers = {(row["by"], row["group"]): row for row in rows("serving.csv")}
    same = next(one for one in found if one.near == "same model")
    row = servers["model", "qwen3-32b"]
    assert (same.n_rows, same.mean, same.inside) == (
        int(row["rows"]),
        float(row["tpot_mean"]),
        float(row["tpot_inside"]),
    )
    assert [one.near for one in found if one.what.startswith("servers")] == [
        "same model",
        "same model, by a fit that saw none of it",
        "same device",
        "same stack",
        "as many devices",
        "dense models",
        "dense models, each by a fit that saw none of it",
    ]
    worst = max(one.mean for one in shown)
    assert f"err by up to {worst:.0%} in the mean on rows that no fit saw" in sentence
    assert sentence.endswith("Servers of qwen3-32b were measured too.")


def test_a_design_of_which_little_was_measured_says_so():
    sentence, found = of("mi300x", "mixtral-8x7b")
    assert "were not measured: those of the nearest device stand in" in sentence
    assert "Servers of mixtral-8x7b were not measured: the nearest are below" in sentence
    assert {one.near for one in found} <= {
        "same stack",
        "as many devices",
        "mixture models",
        "mixture models, each by a fit that saw none of it",
    }


def test_a_device_without_kernels_is_one_of_its_data_sheet():
    sentence, found = of("oaken-hbm", "llama2-7b")
    assert sentence.startswith("Nobody measured kernels of ")
    assert not [one for one in found if one.what.startswith("kernels")]
