"""Nothing that a device's software does not run is on a front, best, or in a verdict, wherever designs are compared."""

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dse
from dse.figures.export import front as written
from dse.questions import best_map, common, doubt, need
from dse.questions.formats import formats
from dse.specs import catalog
from dse.specs.workload import Workload

#: some that each device runs, some that none of its software does
FORMATS = ("fp16", "fp8", "oaken", "nqkv", "sinkq", "kivi:bits=4", "nvfp4", "q8_0", "int4_per_token_head")
DEVICES = ("a100-80gb", "oaken-hbm", "oaken-lpddr", "h200", "m4-max", "lpu-hbm", "tpu-v6e")
WORK = Workload(input_tokens=512, output_tokens=32, batch=8)
#: of the brief: three devices, three quantizers
AXES = {
    "device": ["a100-80gb", "oaken-hbm", "oaken-lpddr"],
    "model": ["llama2-13b"],
    "quantizer": ["oaken", "nqkv", "sinkq"],
    "batch": [16, 64, 256],
}
KEEP = ["throughput_tokens_per_s", "kv_bytes", "runs_why"]
drawn = given(
    device=st.sampled_from(DEVICES),
    names=st.lists(st.sampled_from(FORMATS), min_size=2, max_size=4, unique=True),
    allowed=st.booleans(),
)


def designs_of(device, names):
    return [common.design(device, "llama3.1-8b", name) for name in names]


@pytest.fixture(scope="module")
def table():
    return dse.sweep({"axes": AXES, "keep": KEEP})


def test_the_briefs_own_sweep(table):
    """Oaken's chips run Oaken's method; nobody's software runs SinkQ on them, whose assumed rate is faster."""
    found = dse.front(table, maximize=["throughput_tokens_per_s"])
    assert set(found.table["quantizer"]) == {"oaken"}
    assert found.n_refused == 21  # of 27 all but three batches of Oaken on two chips
    runs = table[table["runs"]]
    assert set(runs["quantizer"]) == {"oaken"}
    assert set(runs["device"]) == {"Oaken-HBM", "Oaken-LPDDR"}
    # what does not run is computed all the same
    assert table["throughput_tokens_per_s"].notna().all()
    other = dse.front(table, maximize=["throughput_tokens_per_s"], other_software=True)
    assert other.table["throughput_tokens_per_s"].max() == table["throughput_tokens_per_s"].max()
    assert found.table["throughput_tokens_per_s"].max() == runs["throughput_tokens_per_s"].max()


def test_a_sweep_that_lets_other_software_compete(table):
    wide = dse.sweep({"axes": AXES, "keep": KEEP}, other_software=True)
    assert wide["runs"].all()
    assert wide["throughput_tokens_per_s"].equals(table["throughput_tokens_per_s"])
    assert wide["runs_why"].notna().sum() == 21


def test_a_front_says_what_it_rests_on(table):
    text = written.text(dse.front(table, maximize=["throughput_tokens_per_s"]))
    assert "21 not run by their software" in text.splitlines()[0]
    assert text.splitlines()[-1].startswith("Rests on assumed numbers: rate of the unpacking engine")
    other = written.text(dse.front(table, maximize=["throughput_tokens_per_s"], by=["device"], other_software=True))
    assert "rate of unpacking inside attention" in other.splitlines()[-1]


@drawn
@example(device="h200", names=["int4_per_token_head", "fp8"], allowed=False)
@settings(max_examples=12, deadline=None)
def test_maps_speeds_and_winners(device, names, allowed):
    work = replace(WORK, other_software=allowed)
    every = designs_of(device, names)
    runs = {one.name for one in every if one.speed(work)["runs"]}
    assert not allowed or len(runs) == len(every)
    for cell in best_map.best_map(every, work, batches=[1, 64], inputs=[256]).cells:
        assert {*cell.best, cell.next_best} - {""} <= runs
        assert bool(cell.best) == bool(runs)
    asked = {"input_tokens": 512, "output_tokens": 32, "other_software": allowed}
    speeds = dse.interactivity(device, "llama3.1-8b", names, splits=[1], max_tpot="10 s", **asked)
    assert speeds.best is None or speeds.best["quantizer"] in runs
    assert (speeds.best is None) == (not runs)
    said = speeds.text()
    for name in {one.name for one in every} - runs:
        assert f"Best within TPOT 10 s: {name}," not in said
        assert f"{name}, not run" in said
    most = need.most_bits(every, work, need.target(1e-3, None))
    assert most.best is None or most.best["quantizer"] in runs
    found = doubt.doubt(every[0], work, other=every[1])
    pair = {one.name for one in every[:2]}
    assert found.winner in ("tie", *(pair & runs or pair))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("allowed", [False, True])
def test_formats_that_are_named(device, allowed):
    spec, model = catalog.device(device), catalog.model("llama3.1-8b")
    answer = formats(spec, model, replace(WORK, other_software=allowed), list(FORMATS[1:]), has_starts=False)
    for one in answer.formats[1:]:
        assert bool(one.result["runs_why"]) == bool(one.elsewhere)
    assert answer.best is None or answer.best.result["runs"]
    if not allowed:
        assert answer.best is None or not answer.best.elsewhere
        assert not any(f"{one.name} pays" in answer.answer() for one in answer.formats if one.elsewhere)


@drawn
@settings(max_examples=12, deadline=None)
def test_fronts_of_tables(device, names, allowed):
    table = pd.DataFrame([one.evaluate(WORK) for one in designs_of(device, names)])
    found = dse.front(table, maximize=["throughput_tokens_per_s"], minimize=["kv_bytes"], other_software=allowed)
    assert allowed or found.table["runs"].all()
    assert len(found.table) > 0 or not (allowed or table["runs"].any())
