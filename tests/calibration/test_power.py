"""Energy fitted to measured power: tables whose coefficients are known, tables of the package's form, bad input."""

import numpy as np
import pandas as pd
import pytest

from calibration import power
from dse.core.errors import InputError
from dse.specs import catalog

#: pJ/B and pJ/FLOP by format, and W, that the tables are made of
KNOWN = {"bf16": (100.0, 0.5), "fp8": (120.0, 0.3)}
IDLE_W = 200.0
HEADER = "table,format,latency_us,power_w,n_bytes,flops"


def table(tmp_path, lines, header=HEADER):
    path = tmp_path / "power.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


def known_lines(n=40):
    """Rows from reading alone to calculating alone, each 1 ms, whose power is the sum of its parts."""
    lines = []
    for code, (per_byte, per_flop) in KNOWN.items():
        for i in range(n):
            n_bytes, flops = 4e9 * (i + 1) / n, 8e11 * (7 * i % n + 1) / n
            watts = IDLE_W + (per_byte * n_bytes + per_flop * flops) * 1e-12 / 1e-3
            lines.append(f"t{i % 2},{code},1000,{watts:.6f},{n_bytes:.0f},{flops:.0f}")
    return lines


def test_known_energy_is_found_again_and_written(tmp_path):
    out = tmp_path / "own.toml"
    found = power.run(table(tmp_path, known_lines()), str(out), device="b200")
    for code, (per_byte, per_flop) in KNOWN.items():
        assert found["parameters"][f"byte.{code}"] == pytest.approx(per_byte * 1e-12, rel=0.01)
        assert found["parameters"][f"flop.{code}"] == pytest.approx(per_flop * 1e-12, rel=0.01)
    assert found["parameters"]["idle"] == pytest.approx(IDLE_W, rel=0.01)
    assert found["errors"]["shapes"]["median"] < 0.01
    assert found["errors"]["table t0"]["median"] < 0.01
    device = catalog.device(str(out))
    assert device.energy_per_byte_fp8.si == pytest.approx(120e-12, rel=0.01)
    assert device.energy_per_byte_fp8.low <= device.energy_per_byte_fp8.value <= device.energy_per_byte_fp8.high
    assert device.energy_per_byte.kind == "measured"
    assert "energy_per_flop_fp8" in power.text(found)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("t,bf16,1000,0,1e9,1e9", ":2: power_w = '0': must be more than 0"),
        ("t,bf16,1000,-5,1e9,1e9", ":2: power_w = '-5': must be more than 0"),
        ("t,bf16,1000,nan,1e9,1e9", ":2: power_w = 'nan': must be a number"),
        ("t,bf17,1000,5,1e9,1e9", ":2: format = 'bf17': is not known"),
    ],
)
def test_bad_cells_say_where_and_what(tmp_path, line, says):
    with pytest.raises(InputError) as error:
        power.run(table(tmp_path, [line]), str(tmp_path / "o.toml"), device="b200")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_column_and_too_few_rows_are_one_line(tmp_path):
    path = table(tmp_path, ["t,bf16,1000,1e9,1e9"], "table,format,latency_us,n_bytes,flops")
    with pytest.raises(InputError, match=r":1: column power_w is missing"):
        power.run(path, str(tmp_path / "o.toml"), device="b200")
    with pytest.raises(InputError, match="usable rows"):
        power.run(table(tmp_path, known_lines()[:5]), str(tmp_path / "o.toml"), device="b200")


def checkout(tmp_path, power_w=None):
    """A folder as the package has it, with one table of products: 60 shapes, each measured three times over."""
    rows = []
    for i in range(60):
        m, n, k = 16 * (i + 1), 16384, 16384
        n_bytes, flops = 2 * (n * k + m * k + m * n), 2 * m * n * k
        seconds = max(n_bytes / 7e12, flops / 1.5e15) * 1.5
        watts = IDLE_W + (100e-12 * n_bytes + 0.5e-12 * flops) / seconds
        for _ in range(3):
            rows.append(
                {
                    "framework": "VLLM",
                    "version": "0.0.1",
                    "device": "NVIDIA B200",
                    "gemm_dtype": "bfloat16",
                    "m": m,
                    "n": n,
                    "k": k,
                    "latency": seconds * 1e3,
                    "power": watts,
                    "power_limit": 1000.0,
                }
            )
    frame = pd.DataFrame(rows)
    if power_w is not None:
        frame.loc[4, "power"] = power_w
    frame.loc[len(frame)] = {**rows[0], "power": IDLE_W, "latency": 0.01}
    frame.loc[len(frame)] = {**rows[0], "power": IDLE_W, "latency": 0.01}
    folder = tmp_path / "b200_sxm" / "gemm" / "vllm" / "0.0.1"
    folder.mkdir(parents=True)
    frame.to_parquet(folder / "gemm_perf.parquet")
    return str(tmp_path)


def test_tables_of_the_package_are_read_by_kernel(tmp_path):
    found = power.from_package(checkout(tmp_path), catalog.device("b200"), "vllm")
    # the first and last of the readings of a shape stand beside another's: what is left is settled
    assert 60 <= len(found.rows) <= 180
    fitted = power.solved(found.rows, IDLE_W)
    assert fitted["byte.bf16"] == pytest.approx(100e-12, rel=0.03)
    assert fitted["flop.bf16"] == pytest.approx(0.5e-12, rel=0.03)


@pytest.mark.parametrize("wrong", [0.0, -3.0, float("nan")])
def test_a_reading_that_cannot_be_is_one_line(tmp_path, wrong):
    with pytest.raises(InputError, match=r"power = (0|-3|nan): must be more than 0 W") as error:
        power.from_package(checkout(tmp_path, wrong), catalog.device("b200"), "vllm")
    assert "\n" not in str(error.value)


def test_only_rows_between_equal_readings_are_settled():
    # by hand: 500 has 300 on its left, the second 500 has 500 and 505 beside it
    assert power._settled(np.array([300.0, 500.0, 500.0, 505.0, 900.0])).tolist() == [False, False, True, False, False]


def test_a_short_run_is_a_small_share_of_its_reading():
    # 0.1 ms, repeated 3,000 times, run 0.3 s: the mean of the last second is theirs from 0 to 0.3, so 0.15 of it
    assert power.share_of_reading(np.array([1e-4, 1e-3])).tolist() == pytest.approx([0.15, 0.5])
