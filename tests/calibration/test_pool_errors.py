"""Ends of pools: by hand, with devices left out, and from rows of logs."""

import pytest

from calibration import pool_errors
from calibration.pool_errors import Start, ends, fit, left_out, share_inside
from dse.core.errors import InputError
from dse.specs import catalog, servers


def start(off, device="A", model="m", engine="vllm", kind="small"):
    return Start(engine, kind, device, model, off)


def test_ends_by_hand():
    """Ten models, each once: the lowest and the highest are the tenth that lies outside."""
    starts = [start(off / 100, model=str(off)) for off in range(-4, 6)]
    assert ends(starts) == (-0.03, 0.04)
    assert ends(starts, wider=0.01) == (pytest.approx(-0.04), pytest.approx(0.05))
    assert ends([start(0.02), start(0.03, model="n")]) == (0.0, 0.03)  # a prediction lies between its own ends


def test_a_model_that_was_started_often_counts_once():
    often = [start(-0.2, model="often")] * 30
    assert ends(often + [start(off / 100, model=str(off)) for off in range(20)]) == (0.0, 0.17)


def test_devices_are_judged_by_others_and_a_lone_device_by_its_models():
    starts = [start(0.1, "A"), start(0.2, "B"), start(0.3, "B", "n"), start(0.4, "C", kind="rocm")]
    starts.append(start(0.5, "C", "n", kind="rocm"))
    found = [([one.off for one in group], [one.off for one in others]) for group, others in left_out(starts)]
    assert found == [([0.1], [0.2, 0.3]), ([0.2, 0.3], [0.1]), ([0.4], [0.5]), ([0.5], [0.4])]
    with pytest.raises(InputError, match="two devices or models"):
        share_inside([start(0.1)], 0.0)


def test_ends_are_moved_until_eight_of_ten_of_what_is_left_out_lie_inside():
    """Of five devices one lies 0.05 and one 0.02 beyond the others, which agree: 0.02 makes four of five lie inside."""
    starts = [start(off, device) for device, off in zip("ABCDE", (0.0, 0.0, 0.0, 0.02, -0.05), strict=True)]
    found, wider = fit(starts)
    assert share_inside(starts, wider) >= 0.8 > share_inside(starts, wider - pool_errors.STEP)
    assert found == {("vllm", "small"): (pytest.approx(-0.05 - wider), pytest.approx(0.02 + wider))}


ROW = {
    "engine": "vllm",
    "version": "0.12.0",
    "model": "meta-llama/Meta-Llama-3.1-8B-Instruct",
    "gpu": "RTX 5090",
    "tp": "1",
    "kv": "auto",
    "util": "0.95",
    "max_model_len": "65536",
    "max_num_seqs": "64",
    "prompt_budget": "2048",
    "kv_gib": "14.31",
    "kv_tokens": "117232",
    "model_gib": "14.9889",
}


def test_a_row_is_its_pool_less_ours():
    """A log of vLLM 0.12.0 on an RTX 5090 of 31.35 GiB: ours is 14.34 GiB, the log's 14.31."""
    found = pool_errors.start_of(ROW)
    assert found == Start("vllm", "small", "RTX-5090", "llama3.1-8b", pytest.approx(-0.03 / 31.35, abs=2e-4))
    by_tokens = pool_errors.start_of({**ROW, "kv_gib": ""})
    assert by_tokens.off == pytest.approx(found.off, abs=3e-4)  # logs round to 0.01 GiB


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"suspect": "rounded"}, "suspect"),
        ({"draft": "MTP"}, "draft"),
        ({"outcome": "does not fit"}, "does not start"),
        ({"util": ""}, "share of the memory"),
        ({"kv_gib": "", "kv_tokens": ""}, "has no pool"),
        ({"version": "fork"}, "no release"),
        ({"gpu": "abacus"}, "no shipped device"),
        ({"model": "nobody/knows-7b"}, "cannot be asked: unknown model"),
        ({"model_gib": "29.98"}, "another format"),
        ({"model": "llama3-70b"}, "does not fit"),
    ],
)
def test_rows_that_say_too_little_are_told(changes, said):
    assert said in pool_errors.start_of({**ROW, **changes})


def test_tables_are_read_and_each_class_is_printed(tmp_path, capsys):
    table = tmp_path / "logs.csv"
    rows = [
        ROW,
        {**ROW, "gpu": "RTX 4090", "kv_gib": "5.0", "kv_tokens": "", "max_model_len": "8192"},
        {**ROW, "util": ""},
    ]
    table.write_text("\n".join([",".join(ROW), *(",".join(row.values()) for row in rows)]))
    pool_errors.main([str(table)])
    printed = capsys.readouterr().out
    assert printed.startswith("vllm small: pool_low ")
    assert "2 start-ups of RTX-4090, RTX-5090" in printed
    assert "1 rows: does not state its share of the memory" in printed
    with pytest.raises(InputError, match="give tables"):
        pool_errors.main([])


def test_memory_that_the_host_uses_too_is_a_class_of_its_own():
    kinds = {name: servers.kinds_of(catalog.device(name))[1:] for name in ("h100", "r9700", "gb10", "strix-halo")}
    assert kinds == {"h100": (), "r9700": ("rocm",), "gb10": ("unified",), "strix-halo": ("rocm", "unified")}
