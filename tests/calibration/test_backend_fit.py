"""llama.cpp by its backends: a step by hand, the fitter, the shipped numbers."""

import csv
import dataclasses
import math
import tomllib
from pathlib import Path

import pytest

import factories
import hwspecs
from calibration import backends
from dse.core.errors import InputError
from dse.model import engine
from dse.model.intervals import OTHER_VENDOR
from dse.specs import catalog
from dse.specs.stack import BackendsSpec
from dse.validate import speed

TABLE = Path(backends.__file__).parent / "backends.csv"
PROGRAM = catalog.backends()["llama.cpp"]
#: round numbers, so that a step is a sum on paper
ROUND = {
    "layer": 10.0,
    "experts_layer": 50.0,
    "unrecorded": 150.0,
    "sequence": 100.0,
    "weights_share": 0.8,
    "grid_share": 0.4,
    "attention_share": 0.5,
    "elements_per_cycle": 4.0,
    "products_share": 1.0,
    "experts_share": 1.0,
    "experts_prompt": 0.0,
}


@pytest.fixture(scope="module")
def rows():
    return {row.id: row for row in speed.read(str(TABLE))}


def test_a_step_is_what_it_reads_and_a_constant_a_layer(rows):
    """Llama-3.1-8B in Q4_0 on an RTX 6000 Ada, one sequence at about 96 tokens."""
    found = backends.predicted(rows["FS323"], ROUND)["tpot"]
    # 8.03e9 parameters less the 128,256 x 4,096 of the input embedding, 4.5 bits: 4.22 GB over 0.8 of 960 GB/s
    weights_s = (8_030_261_248 - 128_256 * 4096) * 4.5 / 8 / (0.8 * 960e9)
    # products: 2 operations a parameter at 364.2 TFLOP/s, joined by the root of squares
    compute_s = 2 * (8_030_261_248 - 128_256 * 4096) / 364.2e12
    # 32 layers of 8 heads, keys and values of 128 channels in 2 bytes: 131,072 B a token, 32 + 64.5 of them
    attention_s = (32 + 64.5) * 131_072 / (0.5 * 960e9)
    assert found == pytest.approx(math.hypot(weights_s, compute_s) + attention_s + 32 * 10e-6 + 100e-6, rel=0.005)


def test_a_mixture_reads_the_experts_that_its_sequences_meet(rows):
    """Qwen3-30B-A3B in Q8_0 on a DGX Spark at 512 tokens: 8 of 128 experts a token."""
    one, eight = (backends.predicted(rows[name], ROUND)["tpot"] for name in ("FS209", "FS210"))
    model = catalog.model("qwen3-30b-a3b")
    dense = model.dense_parameters - model.embedding_parameters
    of_token = 48 * 2 * 4 * 128 * 2 / (0.5 * 273e9)  # bytes of a token over half of the bandwidth

    def by_hand(n):  # 1 - (120 / 128)^n of the experts are met by n sequences
        read = (dense + model.expert_parameters * (1 - (120 / 128) ** n)) * 8.5 / 8 / (0.8 * 273e9)
        return read + n * 528.5 * of_token + 48 * (10e-6 + 50e-6) + n * 100e-6

    assert one == pytest.approx(by_hand(1), rel=0.01)
    assert eight == pytest.approx(by_hand(8), rel=0.01)


def test_kernels_of_a_mixture_start_one_by_one_where_nothing_records_them(rows):
    """ik_llama.cpp records mixtures since 2025-08-14 (its pull request 689), Metal never does."""
    row = rows["FS250"]
    assert row.work.stack == "llama.cpp@2025-05"
    newer = dataclasses.replace(row, work=dataclasses.replace(row.work, stack="llama.cpp@2025-09"))
    old, new = (backends.predicted(one, ROUND)["tpot"] for one in (row, newer))
    assert old - new == pytest.approx(48 * (150e-6 - 50e-6))
    starts = {name: PROGRAM.stack(name, None, "b6918").experts["gguf"].launch.value for name in PROGRAM.backends}
    recorded = PROGRAM.numbers.experts["gguf"].launch.value
    assert starts == {"cuda": recorded, **dict.fromkeys(("metal", "rocm", "vulkan"), PROGRAM.unrecorded.value)}


def test_keys_in_q8_0_are_unpacked_for_each_query_head(rows):
    """Qwen3.6-27B at 55,296 tokens on an RTX 3090: what eight bits save in bytes, unpacking takes and more."""
    plain, packed = (backends.predicted(rows[name], ROUND)["tpot"] for name in ("DD09", "DD10"))
    # 16 layers of full attention, 4 heads of 2 x 256 channels, 6 queries each; 82 cores of 4 elements at 1,695 MHz
    elements = 16 * 4 * 512 * (55_296 + 32.5)
    unpack_s = 6 * elements / (82 * 4 * 1695e6)
    read_s, plain_s = elements * 8.5 / 8 / (0.5 * 936e9), elements * 2 / (0.5 * 936e9)
    assert packed - plain == pytest.approx(math.hypot(unpack_s, read_s) - plain_s, rel=0.02)


def test_the_fit_finds_the_numbers_that_made_the_steps(rows, monkeypatch):
    """Rows made of known numbers: what they tell is found again, from other starts."""
    made = {**ROUND, "layer": 35.0, "attention_share": 0.6, "sequence": 60.0, "weights_share": 0.87}
    chosen = [rows[name] for name in ("FS191", "FS193", "FS237", "FS209", "FS241", "FS323", "IK01", "DD00", "DD10")]
    exact = [dataclasses.replace(row, measured=backends.predicted(row, made)) for row in chosen]
    monkeypatch.setattr(backends, "OPEN", 1e-4)
    monkeypatch.setattr(backends, "KNOWN", 1e-4)
    found = backends.solve(exact)
    assert {name: found[name] for name in ("layer", "attention_share", "weights_share")} == pytest.approx(
        {name: made[name] for name in ("layer", "attention_share", "weights_share")}, rel=0.05
    )


def test_rows_of_a_model_on_a_device_count_as_one():
    """Ten equal rows of one device and one of another: ends are of two groups, not of eleven rows."""
    row = next(iter(speed.read(str(TABLE))))
    other = dataclasses.replace(row, device_name="other")
    judged = [backends.Judged(row, "tpot", math.log(1.2))] * 10 + [backends.Judged(other, "tpot", math.log(0.8))]
    assert backends.ends(judged, "tpot") == pytest.approx((0.8, 1.2))


def test_the_shipped_numbers_fit_their_rows(rows):
    judged = backends.judge(shipped(), list(rows.values()))
    median, p90 = backends.errors(judged, "tpot")
    assert median < 0.10
    assert p90 < 0.20


def shipped():
    """The numbers of the shipped file, by the fitter's names."""
    stack, run = PROGRAM.numbers, catalog.implementations_of("q8_0")["llama.cpp"]
    return {
        "layer": stack.host.layer.value,
        "experts_layer": stack.experts["gguf"].launch.value,
        "unrecorded": PROGRAM.unrecorded.value,
        "sequence": stack.host.sequence.value,
        "weights_share": stack.products["gguf"].memory_frac.value,
        "grid_share": stack.products["gguf_grid"].memory_frac.value,
        "attention_share": stack.attention.memory_frac.value,
        "elements_per_cycle": run.elements_per_cycle.value,
        "products_share": stack.products["gguf"].flops_frac.value,
        "experts_share": stack.experts["gguf"].flops_frac.value,
        "experts_prompt": stack.host.experts_prompt.value,
    }


def test_the_written_file_is_read_again(rows):
    """What the fitter writes is a file of the program, whose backends without rows are wider by another vendor's."""
    judged = backends.judge(shipped(), [rows["FS323"], rows["FS191"], rows["IK01"]])
    found = backends.Fitted(shipped(), 3, judged, judged, judged)
    again = BackendsSpec.model_validate(tomllib.loads(backends.file_text(found, PROGRAM, "t.csv")), strict=False)
    assert {name: one.architectures for name, one in again.backends.items()} == {
        "cuda": ("sm_",),
        "metal": ("apple_",),
        "rocm": ("gfx",),
        "vulkan": ("xe2",),
    }
    cuda, metal = (again.backends[name].left_out["dense"] for name in ("cuda", "metal"))
    assert (metal.low, metal.high) == pytest.approx((cuda.low / OTHER_VENDOR, cuda.high * OTHER_VENDOR), rel=0.01)


def test_the_shipped_file_is_the_fitters():
    text = (Path(hwspecs.__file__).parent / "backends" / "llama.cpp.toml").read_text()
    assert text.startswith("# Written by `dse calibrate backends.csv --kernel backend`")
    with TABLE.open(newline="") as file:
        assert PROGRAM.numbers.host.n_points == len(list(csv.DictReader(file)))


def test_too_few_rows_are_refused(tmp_path):
    lines = TABLE.read_text().splitlines()[:6]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"5 rows of llama\.cpp with decode = yes: give 10 or more"):
        backends.run(str(tmp_path / "t.csv"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def point(device, model="llama3.1-8b", kv="q8_0", **work):
    return factories.point(device, model, kv, **{"batch": 1, "weights": "q4_k_m", **work})


def test_on_metal_it_is_the_default_and_nothing_else_runs():
    at = point("m4-max")
    found = engine.evaluate(at)
    assert (found["stack"], found["model_kind"]) == ("llama.cpp", "calibrated")
    assert "nearest_kernels" in found["assumptions"]
    assert found["token_time_low"] < 1 < found["token_time_high"]
    with pytest.raises(InputError, match=r"vLLM does not run on Metal, which M4-Max has: use llama\.cpp, the default"):
        engine.evaluate(point("m4-max", stack="vllm"))


def test_files_of_it_run_in_it_unless_another_stack_is_asked_for():
    """GGUF weights mean llama.cpp wherever it has a backend; the RTX 3090 and a Strix Halo have vLLM's kernels too."""
    assert {engine.evaluate(point(name))["stack"] for name in ("rtx-3090", "strix-halo", "h100")} == {"llama.cpp"}
    assert engine.evaluate(point("rtx-3090", stack="vllm"))["stack"] == "vllm"
    assert engine.evaluate(point("rtx-3090", weights="int4"))["stack"] == "vllm"


@pytest.mark.parametrize(
    ("device", "stack", "said"),
    [
        ("gaudi3", "llama.cpp", "llama.cpp has CUDA, Metal, ROCm, Vulkan, none of them for Gaudi3"),
        ("rtx-3090", "llama.cpp@kernels", "was measured by whole steps alone: use llama.cpp"),
        ("rtx-3090", "llama.cpp@new", "is no release"),
        ("m4-max", "mlx", "its times are not modeled: its KV types .* count in memory: use llama.cpp"),
        ("rtx-3090", "ollama", r"runs llama.cpp's code: use llama.cpp"),
    ],
)
def test_a_stack_that_there_is_not_is_refused_in_a_line(device, stack, said):
    with pytest.raises(InputError, match=said):
        engine.evaluate(point(device, stack=stack))


def test_a_build_is_a_release_and_slots_are_four():
    found = engine.evaluate(point("rtx-3090", stack="llama.cpp@b6918", batch=None))
    assert found["stack"] == "llama.cpp@b6918"
    assert found["running_batch"] == 4
    # a step of a card with twice the bandwidth takes less, whatever chip other stacks' kernels are of
    assert engine.evaluate(point("rtx-4090", stack="llama.cpp"))["tpot_s"] < found["tpot_s"]
