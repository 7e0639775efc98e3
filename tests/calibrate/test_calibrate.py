"""Calibration: formulas by hand, fits of tables whose parameters are known, shipped parameters."""

import json
import math
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from dse.calibrate import fit as calibrate
from dse.calibrate import solve
from dse.calibrate import table as calibrate_table
from dse.calibrate import write as calibrate_write
from dse.cli.main import cli
from dse.core import specfile, units
from dse.core.errors import InputError, SpecError
from dse.model import stacks
from dse.model.formulas import calibrated
from dse.specs import catalog
from dse.specs.workload import Workload

TRUE = {"launch": 11e-6, "split": 4e-6, "per_unit": 3.5e-6, "memory_frac": 0.85, "core_rate": 0.0, "layout_copy": 0.0}
HEADER = "gpu,framework,framework_version,batch,n_q_heads,n_kv_heads,head_dim,kv_len_tokens,kv_dtype,latency_us"
H100 = {"n_cores": 132, "bandwidth": 3.35e12, "flops": 989e12}

CALIBRATE, PREDICT = cli.commands["calibrate"], cli.commands["predict"]


def naive_attention_s(batch, q, kv, dim, length, bits, true, chip, launch=None, core_rate=None):
    """One layer's decode attention, written a second time from the page that describes it."""
    elements = 2 * batch * kv * dim * length
    memory = (elements * bits / 8 + 2 * batch * q * dim * 2) / (true["memory_frac"] * chip["bandwidth"])
    unit = true["per_unit"] * batch * kv / chip["n_cores"]
    rate = true["core_rate"] if core_rate is None else core_rate
    active = min(chip["n_cores"], batch * kv * max(1, length / 128))
    core = elements / (active * rate) if rate else 0
    flop = 4 * batch * q * dim * length / (0.6 * chip["flops"])
    fixed = true["launch"] if launch is None else launch
    fixed += true["split"] if length > 128 else 0
    fixed += true["layout_copy"] if q > kv and batch > 1 else 0
    return fixed + math.sqrt(memory**2 + unit**2 + core**2 + flop**2)


def formula_s(batch, q, kv, dim, length, kv_bytes, true, chip):
    """The same by the formulas."""
    return calibrated.attention_layer_s(
        n_tokens=length,
        n_units=batch * kv,
        n_elements=2 * batch * kv * dim * length,
        kv_read_bytes=kv_bytes,
        io_bytes=calibrated.attention_io_bytes(batch, q, 2 * dim),
        flops=batch * length * 2 * q * 2 * dim,
        n_copies=calibrated.layout_copies(batch, q, kv),
        launch_s=true["launch"],
        split_s=true["split"],
        copy_s=true["layout_copy"],
        unit_s=true["per_unit"],
        memory_frac=true["memory_frac"],
        core_rate_per_s=true["core_rate"],
        n_cores=chip["n_cores"],
        bandwidth_bytes_per_s=chip["bandwidth"],
        peak_flops_per_s=chip["flops"],
    )


def rows(n, seed, noise=0.02, true=TRUE, code="bfloat16", **other):
    """CSV lines of n random shapes on an H100 with known parameters."""
    rng = np.random.default_rng(seed)
    lines = []
    while len(lines) < n:
        batch, kv = int(2 ** rng.integers(0, 10)), int(2 ** rng.integers(0, 6))
        q, length = kv * int(2 ** rng.integers(0, 4)), int(2 ** rng.integers(3, 16))
        bits = {"bfloat16": 16, "fp8": 8}[code]
        if 2 * batch * kv * 128 * length * bits / 8 > 4e9:
            continue
        seconds = naive_attention_s(batch, q, kv, 128, length, bits, true, H100, **other)
        seconds *= 1 + noise * rng.standard_normal()
        lines.append(f"H100-SXM5,vllm,1.0,{batch},{q},{kv},128,{length},{code},{seconds * 1e6:.4f}")
    return lines


def table(tmp_path, lines, header=HEADER, name="t.csv"):
    path = tmp_path / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


def fit(path, device="h100"):
    spec = catalog.device(device)
    found, name = calibrate_write.load(path, spec, None)
    return calibrate.fit(found, spec, name)


# formulas


def test_attention_by_hand():
    # 64 sequences, 8 KV heads of 128, 1,024 tokens, 16 bits: 134,217,728 elements, 268,435,456 B; Q and O 2 MiB each
    true = {**TRUE, "core_rate": 10e9, "layout_copy": 5e-6}
    memory = (268_435_456 + 4_194_304 // 4) / (0.85 * 3.35e12)  # 32 query heads: 64 * 32 * 256 * 2 B = 1 MiB
    unit = 3.5e-6 * 512 / 132
    core = 134_217_728 / (132 * 10e9)
    flop = 64 * 1024 * 4 * 32 * 128 / (0.6 * 989e12)
    by_hand = 11e-6 + 4e-6 + 5e-6 + math.sqrt(memory**2 + unit**2 + core**2 + flop**2)
    assert formula_s(64, 32, 8, 128, 1024, 268_435_456, true, H100) == pytest.approx(by_hand, rel=1e-15)


def test_parts_by_hand():
    assert calibrated.attention_io_bytes(4, 32, 256) == 65_536
    assert calibrated.active_cores(1024, 4, 132) == 32
    assert calibrated.active_cores(64, 4, 132) == 4
    assert calibrated.active_cores(10**6, 4, 132) == 132
    assert calibrated.attention_core_s(1024, 3.2e9, 4, 1e9, 132) == 0.1
    assert calibrated.attention_core_s(1024, 3.2e9, 4, 0, 132) == 0
    assert [calibrated.layout_copies(*case) for case in ((2, 8, 8), (1, 8, 2), (2, 8, 2))] == [0, 0, 1]
    assert calibrated.gemm_flops(2, 3, 5) == 60
    assert calibrated.gemm_bytes(2, 3, 5) == 2 * (10 + 15 + 6)
    assert calibrated.gemm_s(3e12, 4e9, 1e-3, 0.5, 0.5, 2e12, 2.667e9) == pytest.approx(
        1e-3 + math.hypot(3, 3), rel=1e-3
    )


SHAPES = {
    "batch": st.integers(1, 2048),
    "heads": st.integers(1, 64),
    "group": st.sampled_from([1, 2, 4, 8]),
    "length": st.integers(1, 131_072),
    "bits": st.sampled_from([2, 4, 8, 16]),
}
PARAMETERS = st.fixed_dictionaries(
    {
        "launch": st.floats(0, 1e-4),
        "split": st.floats(0, 1e-4),
        "per_unit": st.floats(0, 1e-4),
        "memory_frac": st.floats(0.05, 1),
        "core_rate": st.sampled_from([0.0, 1e9, 2.5e10]),
        "layout_copy": st.floats(0, 1e-4),
    }
)


@given(true=PARAMETERS, **SHAPES)
@settings(max_examples=2 * settings.default.max_examples)
def test_equals_a_second_writing_and_never_falls(true, batch, heads, group, length, bits):
    def at(batch=batch, heads=heads, length=length, bits=bits):
        n_bytes = 2 * batch * heads * 128 * length * bits / 8
        return formula_s(batch, heads * group, heads, 128, length, n_bytes, true, H100)

    here = at()
    naive = naive_attention_s(batch, heads * group, heads, 128, length, bits, true, H100)
    assert here == pytest.approx(naive, rel=1e-12)
    slack = here * (1 - 1e-12)  # the core ceiling is level in length where cores fill up: only rounding may differ
    assert at(batch=batch + 1) >= slack
    assert at(heads=heads + 1) >= slack
    assert at(length=length + 1) >= slack
    assert at(bits=2 * bits) >= slack


def test_fewer_bits_stop_helping_at_the_core_ceiling():
    def at(bits):
        return formula_s(64, 32, 8, 128, 8192, 2 * 64 * 8 * 128 * 8192 * bits / 8, {**TRUE, "core_rate": 12e9}, H100)

    assert at(8) > 0.55 * at(16)
    assert at(2) > 0.8 * at(4)


# fits of known parameters


def close(found, true, share):
    for name, value in found.items():
        assert value == pytest.approx(true[name], rel=share, abs=1e-6), name


@pytest.mark.parametrize("seed", range(3))
def test_twenty_rows_give_a_useful_fit(tmp_path, seed):
    (outcome,) = fit(table(tmp_path, rows(20, seed)))
    assert outcome.trusted
    assert outcome.parameters["memory_frac"] == pytest.approx(0.85, rel=0.08)
    assert outcome.parameters["launch"] == pytest.approx(11e-6, rel=0.1)
    fresh = table(tmp_path, rows(300, 100 + seed, noise=0), name="fresh.csv")
    stack = calibrate_write.with_stack({}, "vllm", [outcome])["stacks"]["vllm"]
    device = catalog.device("h100").model_copy(
        update={"stacks": {"vllm": calibrate_write.StackSpec.model_validate(stack)}}
    )
    other = calibrate_table.read(fresh)
    seconds = calibrate_write.predict_s(
        "attention", calibrate_write.arguments(other, device), device.stacks["vllm"].attention_terms()
    )
    off = np.abs(seconds * 1e6 / other.columns["latency_us"] - 1)
    assert off.mean() < 0.05


def test_a_thousand_rows_recover_all_parameters(tmp_path):
    true = {**TRUE, "core_rate": 9e9, "layout_copy": 5e-6}
    (outcome,) = fit(table(tmp_path, rows(1000, 5, true=true)))
    assert outcome.trusted
    assert len(outcome.parameters) == 6
    close(outcome.parameters, true, 0.05)
    assert outcome.errors["all"]["mean"] < 0.025
    assert outcome.errors["all"]["naive_mean"] > 0.3


def test_terms_that_the_rows_do_not_show_are_left_out(tmp_path):
    (outcome,) = fit(table(tmp_path, rows(400, 6)))
    assert set(outcome.parameters) == {"launch", "split", "per_unit", "memory_frac"}
    close(outcome.parameters, TRUE, 0.03)


def test_bad_rows_are_left_out_and_named(tmp_path):
    lines = rows(500, 7)
    for place in (10, 110, 210):  # too slow by far
        cells = lines[place].split(",")
        lines[place] = ",".join([*cells[:-1], f"{float(cells[-1]) * 20:.3f}"])
    for place in (20, 120):  # faster than any memory
        lines[place] = "H100-SXM5,vllm,1.0,64,32,8,128,32768,bfloat16,100"
    (outcome,) = fit(table(tmp_path, lines))
    close(outcome.parameters, TRUE, 0.05)
    left = {item["reason"]: item for item in outcome.left_out}
    assert left["faster than the bandwidth of H100 allows"]["lines"] == [22, 122]
    assert left["more than three times off the fit of the others"]["lines"] == [12, 112, 212]


def test_rows_in_the_cache_do_not_flatter_the_memory(tmp_path):
    chip = {**H100, "bandwidth": 3 * H100["bandwidth"]}
    lines = rows(600, 8)
    for place, line in enumerate(lines):
        _, _, _, batch, q, kv, dim, length, _, _ = line.split(",")
        batch, q, kv, dim, length = int(batch), int(q), int(kv), int(dim), int(length)
        if 4 * batch * kv * dim * length <= 50 * 2**20:
            fast = naive_attention_s(batch, q, kv, dim, length, 16, TRUE, chip)
            lines[place] = ",".join([*line.split(",")[:-1], f"{fast * 1e6:.4f}"])
    (outcome,) = fit(table(tmp_path, lines))
    close(outcome.parameters, TRUE, 0.05)
    assert outcome.cache_factor == pytest.approx(3, rel=0.15)
    assert outcome.n_in_cache > 300


def test_packed_rows_give_launch_and_core_rate(tmp_path):
    lines = rows(300, 9) + rows(300, 10, code="fp8", launch=13e-6, core_rate=15e9)
    attention, packed = fit(table(tmp_path, lines))
    assert (attention.part, packed.part) == ("attention", "kv.fp8")
    assert packed.parameters["launch"] == pytest.approx(13e-6, rel=0.03)
    assert packed.parameters["core_rate"] == pytest.approx(15e9, rel=0.05)


def test_one_packed_row_gives_no_launch(tmp_path):
    """Of two rows one is held out; the other would fit whatever it says. Of three, two can contradict each other."""
    row = f"H100-SXM5,vllm,1.0,64,8,8,128,8192,fp8,{naive_attention_s(64, 8, 8, 128, 8192, 8, TRUE, H100) * 1e6:.4f}"
    (attention,) = fit(table(tmp_path, [*rows(100, 20), row, row]))
    (note,) = [note for note in attention.notes if note.startswith("fp8: not fitted")]
    assert note.endswith("kv.fp8: 1 usable rows for 1 parameters: measure more")
    assert [one.part for one in fit(table(tmp_path, [*rows(100, 20), row, row, row]))] == ["attention", "kv.fp8"]


def test_matrix_products(tmp_path):
    lines = []
    rng = np.random.default_rng(3)
    for _ in range(300):
        m, n, k = (int(2 ** rng.integers(*span)) for span in ((0, 10), (8, 15), (8, 15)))
        seconds = calibrated.gemm_s(
            calibrated.gemm_flops(m, n, k), calibrated.gemm_bytes(m, n, k), 4e-6, 0.7, 0.8, 989e12, 3.35e12
        )
        lines.append(f"H100,vllm,{m},{n},{k},{seconds * 1e6 * (1 + 0.02 * rng.standard_normal()):.4f}")
    (outcome,) = fit(table(tmp_path, lines, header="gpu,framework,m,n,k,latency_us"))
    assert outcome.part == "gemm"
    close(outcome.parameters, {"launch": 4e-6, "memory_frac": 0.8, "flops_frac": 0.7}, 0.04)


def test_same_table_same_fit(tmp_path):
    path = table(tmp_path, rows(100, 11))
    first, again = fit(path)[0], fit(path)[0]
    assert first.parameters == again.parameters
    assert (first.held_out == again.held_out).all()


@pytest.mark.parametrize(("weight", "low"), [(1, 0.5), (2, 0.5), (1, 1.2)])
def test_a_row_far_off_pulls_with_constant_force_by_its_weight(weight, low):
    # three rows at 1 and one at e: 3 ln p + 0.001 (p - 1) p = weight * 0.05, the second term pulling to the usual 1
    space = solve.Space(("p", "fixed"), np.ones(2), np.array([low, 0.0]), np.array([9.0, 9.0]))
    measured, weights = np.array([1, 1, 1, math.e]), np.array([1, 1, 1, weight])
    point, loss = solve.solve(lambda p: p[0] * np.ones(4) * p[1], measured, weights, space, np.array([2.0, 1.0]), [0])
    assert point[1] == 1
    if low > 1:
        assert point[0] == low  # exactly
    else:
        found = math.log(point[0])
        assert 3 * found + 1e-3 * (point[0] - 1) * point[0] == pytest.approx(weight * 0.05, rel=1e-5)
        by_hand = 1.5 * found**2 + weight * 0.05 * (1 - found - 0.025) + 1e-3 * (point[0] - 1) ** 2 / 2
        assert loss == pytest.approx(by_hand)


# what cannot be trusted, and commands


def run(command, *args):
    return CliRunner().invoke(command, [str(arg) for arg in args])


def test_calibrate_writes_a_device_that_predicts(tmp_path):
    path, out = table(tmp_path, rows(120, 12) + rows(60, 13, code="fp8", core_rate=20e9)), tmp_path / "mine.toml"
    result = run(CALIBRATE, path, "--device", "h100", "--stack", "mine", "--out", out)
    assert result.exit_code == 0, result.output
    assert "held out" in result.output
    device = catalog.device(str(out))
    assert device.stacks["mine"].codes() == ["fp16", "fp8"]
    assert device.stacks["vllm"] == catalog.device("h100").stacks["vllm"]
    assert device.stacks["mine"].attention.launch.kind == "measured"
    assert "t.csv" in device.stacks["mine"].attention.launch.source
    assert (tmp_path / "mine.html").stat().st_size > 10_000
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")
    wanted = tmp_path / "predicted.csv"
    result = run(PREDICT, "attention", path, "--device", out, "--stack", "mine", "--out", wanted)
    assert result.exit_code == 0, result.output
    lines = wanted.read_text().splitlines()
    assert lines[0] == HEADER + ",predicted_us"
    off = [abs(float(line.split(",")[-1]) / float(line.split(",")[-2]) - 1) for line in lines[1:]]
    assert len(off) == 180
    assert sum(off) / len(off) < 0.05


def test_calibrate_prints_json(tmp_path):
    result = run(CALIBRATE, table(tmp_path, rows(50, 14)), "--device", "h100", "--out", tmp_path / "o.toml", "--json")
    found = json.loads(result.stdout)
    assert found["stack"] == "vllm"
    assert found["parts"][0]["parameters"]["launch"] == pytest.approx(11e-6, rel=0.1)


def test_json_devices_and_short_numbers_are_kept(tmp_path):
    device = {
        "name": "H100-mine",
        "memory_capacity": "80 GB",
        "memory_bandwidth": "3.35 TB/s",
        "peak_flops": "989 TFLOP/s",
        "n_cores": 132,
        "dequant_path": {"nqkv": "fused"},
    }
    (tmp_path / "d.json").write_text(json.dumps(device))
    out = tmp_path / "out.toml"
    result = run(CALIBRATE, table(tmp_path, rows(60, 15)), "--device", tmp_path / "d.json", "--out", out)
    assert result.exit_code == 0, result.exception
    assert catalog.device(str(out)).path_of("nqkv") == "fused"


def noisy(n):
    rng = np.random.default_rng(1)
    cells = [line.rsplit(",", 1) for line in rows(n, 16)]
    return [f"{head},{float(last) * math.exp(0.6 * rng.standard_normal()):.3f}" for head, last in cells]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (noisy(200), "mean error on rows not fitted"),
        (["H100-SXM5,vllm,1.0,64,8,8,128,32768,bfloat16,3200"] * 20, "do not determine launch"),
        (["H100-SXM5,vllm,1.0,64,8,8,128,32768,bfloat16,1300"] * 20, "faster than the bandwidth"),
        (rows(100, 19, true={**TRUE, "memory_frac": 1.04}), "memory is at its bound"),
    ],
)
def test_a_fit_that_cannot_be_trusted_writes_nothing(tmp_path, lines, message):
    out = tmp_path / "kept.toml"
    out.write_text("kept")
    result = run(CALIBRATE, table(tmp_path, lines), "--device", "h100", "--out", out)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert len(result.exception.lines()) == 1
    assert out.read_text() == "kept"


GOOD = "H100-SXM5,vllm,1.0,64,32,8,128,4096,bfloat16,500"


@each(
    ("lines", "header", "place", "reason"),
    [
        ([GOOD], HEADER.replace("latency_us", "latency_ms"), ":1:", "column latency_us is missing"),
        ([GOOD], HEADER.replace("kv_dtype", "dtype"), ":1:", "column kv_dtype is missing"),
        ([GOOD.replace(",", ";")], HEADER.replace(",", ";"), ":1:", "separate cells by commas"),
        ([GOOD, GOOD.replace("4096", "many")], HEADER, ":3: kv_len_tokens = 'many'", "must be a number"),
        ([GOOD.replace(",64,", ",1_0,")], HEADER, ":2: batch = '1_0'", "must be a number"),
        ([GOOD.replace(",64,", ",٦,")], HEADER, ":2: batch", "must be a number"),
        ([GOOD.replace(",64,", ",0,")], HEADER, ":2: batch = '0'", "whole number from 1"),
        ([GOOD.replace(",64,", ",1.5,")], HEADER, ":2: batch = '1.5'", "whole number from 1"),
        ([GOOD.replace(",500", ",-3")], HEADER, ":2: latency_us = '-3'", "more than 0"),
        ([GOOD.replace(",500", ",0")], HEADER, ":2: latency_us = '0'", "more than 0"),
        ([GOOD.replace(",500", ",nan")], HEADER, ":2: latency_us = 'nan'", "must be a number"),
        ([GOOD.replace(",500", ",1e400")], HEADER, ":2: latency_us", "more than 0"),
        ([GOOD.replace(",500", ",")], HEADER, ":2: latency_us = ''", "must be a number"),
        ([GOOD.replace(",8,", ",5,")], HEADER, ":2: n_kv_heads = 5", "must divide n_q_heads"),
        ([GOOD.replace("bfloat16", "float64")], HEADER, ":2: kv_dtype = 'float64'", "did you mean"),
        ([GOOD, GOOD.replace("H100-SXM5", "A100")], HEADER, ":3: gpu = 'A100'", "one device a table"),
        ([GOOD.replace("H100-SXM5", "A100-SXM4")] * 9, HEADER, ":2: gpu = 'A100-SXM4'", "the device is H100"),
        ([GOOD, GOOD + ",1"], HEADER, ":3:", "has 11 cells"),
        ([GOOD.replace("vllm", '"vllm')], HEADER, ":2:", "not valid CSV"),
        ([GOOD], HEADER + ",gpu", ":1:", "given twice"),
        ([], HEADER, "t.csv:", "no rows"),
        ([GOOD.replace(",500", ",0.5")] * 9, HEADER, ":2: latency_us = 0.5", "are the times in ms"),
        ([GOOD.replace(",500", ",500000")] * 9, HEADER, ":2: latency_us = 500000", "are the times in ns"),
        ([GOOD] * 3, HEADER, "t.csv:", "usable rows for"),
        ([GOOD, GOOD.replace("vllm", "sglang")], HEADER, "t.csv:", "has rows of vllm, sglang"),
        ([GOOD.replace("4096", "64").replace(",500", ",12")] * 9, HEADER, "t.csv:", "last-level cache"),
        ([GOOD.replace("bfloat16", "fp8")] * 9, HEADER.replace("framework,", "stack,"), "t.csv:", "no rows of 16-bit"),
        ([GOOD + ",3"], HEADER + ",kv_bytes", ":2: kv_bytes = 3", "must be near"),
        ([GOOD + "\0"], HEADER, ":2:", "NUL byte"),
    ],
)
def test_bad_input_is_one_line_with_file_row_and_column(tmp_path, lines, header, place, reason):
    path = table(tmp_path, lines, header)
    result = run(CALIBRATE, path, "--device", "h100", "--out", tmp_path / "o.toml")
    assert isinstance(result.exception, InputError), result.output
    (line,) = result.exception.lines()
    assert "t.csv" in line
    assert place in line
    assert reason in line
    assert not (tmp_path / "o.toml").exists()


@pytest.mark.parametrize(("measured", "device"), [("NVIDIA GB200", "B200"), ("NVIDIA B300 SXM6 AC", "GB300")])
def test_a_name_inside_another_is_another_device(tmp_path, measured, device):
    path = table(tmp_path, [GOOD.replace("H100-SXM5", measured)] * 9)
    result = run(CALIBRATE, path, "--device", device, "--out", tmp_path / "o.toml")
    assert isinstance(result.exception, InputError)
    assert f"the device is {device}: give the device that was measured" in str(result.exception)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"a,b\xff\n1,2\n"])
def test_unreadable_files(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"t\.csv.*: is "):
        calibrate_table.read(str(tmp_path / "t.csv"))


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "t.csv").open("wb") as file:
        file.truncate(calibrate_table.MAX_TABLE_BYTES + 1)
    with pytest.raises(InputError, match="a table has at most"):
        calibrate_table.read(str(tmp_path / "t.csv"))
    with pytest.raises(InputError, match="cannot be read"):
        calibrate_table.read(str(tmp_path / "none.csv"))
    with pytest.raises(InputError, match="is a directory"):
        calibrate_table.read(str(tmp_path))


def test_other_wrong_words(tmp_path):
    path = table(tmp_path, rows(20, 18))
    for args, reason in (
        (("--device", "h100", "--out", tmp_path / "o.csv"), "must end in .toml"),
        (("--device", "h100", "--stack", "My stack", "--out", tmp_path / "o.toml"), "lower-case"),
        (("--device", "oaken-hbm", "--out", tmp_path / "o.toml"), "has no n_cores"),
    ):
        result = run(CALIBRATE, path, *args)
        assert isinstance(result.exception, InputError)
        assert reason in str(result.exception)
    result = run(PREDICT, "attention", path, "--device", "h100", "--stack", "vlm", "--out", tmp_path / "p.csv")
    assert "did you mean vllm" in str(result.exception)
    result = run(PREDICT, "attention", path, "--device", "oaken-hbm", "--out", tmp_path / "p.csv")
    assert isinstance(result.exception, InputError)


def test_predictions_need_parameters_for_every_row(tmp_path):
    path = table(tmp_path, [GOOD, GOOD.replace("bfloat16", "int4")])
    result = run(PREDICT, "attention", path, "--device", "h100", "--out", tmp_path / "p.csv")
    assert ":3: kv_dtype" in str(result.exception)


def test_predictions_quote_what_a_spreadsheet_would_run(tmp_path):
    header = "note,batch,n_q_heads,n_kv_heads,head_dim,kv_len_tokens,kv_dtype"
    path = table(tmp_path, ["=cmd(),1,8,8,128,100,bf16", "-5,1,8,8,128,100,bf16"], header)
    result = run(PREDICT, "attention", path, "--device", "a100-80gb", "--out", tmp_path / "p.csv")
    assert result.exit_code == 0
    first, second = (tmp_path / "p.csv").read_text().splitlines()[1:]
    assert first.startswith("'=cmd(),1,")
    assert second.startswith("-5,1,")


# shipped parameters


FITTED = ("a100-80gb", "h100", "h200", "b200", "b300", "gb200", "gb300", "l40s", "rtx-pro-6000")
BLACKWELL = ("b200", "b300", "gb200", "gb300", "rtx-pro-6000")
EVERY = [
    (path.stem, stack) for path in sorted(catalog.device_files().values()) for stack in catalog.device(path.stem).stacks
]
#: those with attention, which papers' benchmarks can run by; of others only parts of whole steps were fitted
SHIPPED = [(device, stack) for device, stack in EVERY if catalog.device(device).stacks[stack].attention]


def test_what_is_shipped():
    assert set(SHIPPED) >= {(device, stack) for device in FITTED for stack in ("vllm", "sglang")}
    own = {*FITTED} - {"a100-80gb", "h200"}
    borrowers = {name for name in catalog.device_files() if catalog.device(name).stacks_of in own}
    assert {device for device, stack in SHIPPED if stack == "trtllm"} == own | borrowers
    assert {"h100-pcie", "rtx-4090"} < borrowers
    assert set(EVERY) >= {(device, stack) for device in FITTED for stack in ("vllm", "sglang", "trtllm")}


@each(("device", "stack"), sorted({*EVERY} - {*SHIPPED}))
def test_stacks_without_attention_have_parts_of_whole_steps_alone(device, stack):
    """A server borrows the rest of the device's other stacks; kernels alone are none of this stack."""
    own = catalog.device(device)
    assert own.stacks[stack].gemm is None
    assert not own.stacks[stack].parts()
    code = "w8a8" if stack == "transformers" else "bf16"  # a framework of which only 8-bit products were fitted
    assert code in own.stacks[stack].products
    name, served = stacks.stack_of(own, Workload(stack=stack))
    assert name == stack
    assert served.attention == own.stacks["vllm"].attention
    assert served.borrowed["attention"] == "vllm"
    assert served.products[code] == own.stacks[stack].products[code]
    with pytest.raises(InputError, match="has no such kernels: use vllm@kernels, sglang@kernels"):
        stacks.stack_of(own, Workload(stack=f"{stack}@kernels"))


@each(("device", "lender"), [("h100", "trtllm"), ("h200", "trtllm"), ("b200", "sglang")])
def test_latents_are_borrowed_of_kernels_that_gain_by_fewer_bytes(device, lender):
    """SGLang's on Hopper take 6 times as long in FP8 as in 16 bits: that is no other engine's way."""
    _, vllm = stacks.stack_of(catalog.device(device), Workload(stack="vllm"))
    assert (vllm.borrowed["latent.fp8"], vllm.borrowed["latent.fp16"]) == (lender, lender)
    reached = [vllm.latent[code].memory_frac.si for code in ("fp8", "fp16")]
    assert 2 * reached[0] > reached[1]
    _, own = stacks.stack_of(catalog.device(device), Workload(stack="sglang"))
    assert "latent.fp8" not in own.borrowed


@each(("device", "stack"), SHIPPED)
def test_shipped_parameters(device, stack):
    spec = catalog.device(device).stacks[stack]
    assert spec.attention is not None
    assert spec.gemm is not None
    assert len(spec.attention.quantities()) <= 6
    for fit in spec.parts().values():
        for number in fit.quantities().values():
            assert number.unit in units.UNITS
            assert number.kind == "measured"
            assert "aiconfigurator-core 0.12.0" in number.source
        assert fit.n_points > 3000
        assert "aiconfigurator-core 0.12.0" in fit.fitted_on
    terms = spec.attention_terms()
    assert 4e-6 < terms["launch_s"] < 20e-6
    assert 0.5 < terms["memory_frac"] <= 1
    with pytest.raises(KeyError):
        spec.attention_terms("int2")


def test_shipped_errors_are_within_what_is_promised():
    error = {
        (device, stack): catalog.device(device).stacks[stack].attention.serving_error
        for device in FITTED
        for stack in ("vllm", "sglang")
    }
    assert error["a100-80gb", "vllm"] <= 0.075
    assert catalog.device("a100-80gb").stacks["vllm"].attention.serving_p90 <= 0.15
    assert max(error["h100", "vllm"], error["h100", "sglang"]) <= 0.06
    del error["a100-80gb", "sglang"]
    assert np.mean(list(error.values())) <= 0.06
    assert max(error[device, stack] for device, stack in error if device in BLACKWELL) <= 0.035
    assert catalog.device("a100-80gb").stacks["vllm"].gemm.serving_error <= 0.08


def test_stacks_are_shown_with_their_sources():
    from dse.report import listing

    shown = {row["name"]: row for row in listing.show("h100")}
    assert shown["stacks.vllm.attention.launch"]["kind"] == "measured"
    assert "aiconfigurator-core" in shown["stacks.sglang.kv.fp8.core_rate"]["source"]
    assert shown["stacks.vllm.attention.held_out_error"]["unit"] == "%"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('launch = "11', 'launc = "11'), "unknown key: did you mean launch"),
        (("memory_frac = 0.9", "memory_frac = 1.9"), "must be"),
        (("[stacks.vllm.attention]", "[stacks.vLLM.attention]"), "stacks"),
        (("[stacks.vllm.gemm]", "[stacks.vllm.gem]"), "did you mean gemm"),
        (("n_cores = {", "n_corez = {"), "need n_cores"),
    ],
)
def test_wrong_stacks_are_one_line_each(tmp_path, change, reason):
    old, new = change
    text = catalog.device_text(catalog.device_files()["h100"])
    assert old in text
    if "n_cores" in old:
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("n_cores"))
    else:
        text = text.replace(old, new, 1)
    with pytest.raises(SpecError) as caught:
        catalog.device_from(specfile.parse("d.toml", text))
    assert any(reason in line for line in caught.value.lines())


@pytest.mark.skipif(sys.platform == "win32", reason="aiconfigurator-core has no wheel for Windows")
def test_shipped_parameters_come_from_the_package():
    spec = catalog.device("h100")
    found = calibrate_table.from_package("H100", "vllm")
    outcome = calibrate.fit(found, spec, "vllm")[0]
    terms = spec.stacks["vllm"].attention_terms()
    assert outcome.parameters["launch"] == pytest.approx(terms["launch_s"], rel=1e-3)
    assert outcome.parameters["memory_frac"] == pytest.approx(terms["memory_frac"], rel=1e-3)


def test_without_the_package_the_way_to_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    result = run(CALIBRATE, "aiconfigurator-core", "--device", "h100", "--out", tmp_path / "o.toml")
    assert str(result.exception) == "aiconfigurator-core is not installed: pip install 'kv-dse[calibrate]'"


@pytest.mark.parametrize(("time", "part"), [("-3", "latency_us = '-3'"), ("many", "latency_us = 'many'")])
def test_predicting_a_table_with_wrong_times_is_refused(tmp_path, time, part):
    path = tmp_path / "t.csv"
    header = "gpu,framework,framework_version,batch,n_q_heads,n_kv_heads,head_dim,kv_len_tokens,kv_dtype,latency_us"
    path.write_text(f"{header}\nH100,vllm,1,8,32,8,128,1000,bfloat16,{time}\n")
    with pytest.raises(InputError, match=f"t.csv:2: {part}"):
        calibrate_write.predict(str(path), "h100", "vllm", str(tmp_path / "out.csv"))
    path.write_text(f"{header}\nH100,vllm,1,8,32,8,128,1000,bfloat16,\n")
    assert calibrate_write.predict(str(path), "h100", "vllm", str(tmp_path / "out.csv"))["rows"] == 1
