"""Fits of collectives: known parameters are found again, and shipped ones come from the package's tables."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from calibration import links
from dse.cli.main import cli
from dse.core.errors import InputError
from dse.specs import catalog

LINK = 450e9
LIBRARY = {"start": 5e-6, "step": 1.5e-6, "rate": 320e9, "rate_growth": 0.25, "chunk_share": 0.6}
CUSTOM = {"start": 3e-6, "step": 0.1e-6, "direct_rate": 280e9, "split_rate": 260e9}


def rows(predict, noise=0.02, seed=1):
    """Sizes from 512 B to 1 GiB on 2, 4 and 8 devices, times as `predict` says with some noise."""
    n_devices, n_bytes = (grid.ravel() for grid in np.meshgrid([2, 4, 8], 2.0 ** np.arange(9, 31), indexing="ij"))
    blank = links.LinkRows(n_devices, n_bytes, np.ones(len(n_bytes)), "by hand")
    off = 1 + noise * np.random.default_rng(seed).standard_normal(len(n_bytes))
    return links.LinkRows(n_devices, n_bytes, predict(blank) * off, "by hand")


def test_predictions_by_hand():
    one = links.LinkRows(np.array([8]), np.array([1e6]), np.ones(1), "by hand")
    # 5 us + 7 * 1.5 us = 15.5 us; 1.75 MB at 320 GB/s * sqrt(2) = 3.867 us; 1.2 * sqrt(15.5 * 3.867) = 9.291 us
    assert 1e6 * links.predict_library("all_reduce", LIBRARY, one)[0] == pytest.approx(28.658, abs=1e-3)
    # direct: 3.7 us + 7 MB at 280 GB/s = 28.7 us; split: 7.4 us + 1.75 MB at 260 GB/s = 14.131 us
    assert 1e6 * links.predict_custom(CUSTOM, LIBRARY, one)[0] == pytest.approx(14.131, abs=1e-3)


def test_known_parameters_are_found_again():
    outcome = links.fit_library("all_reduce", rows(lambda r: links.predict_library("all_reduce", LIBRARY, r)), LINK)
    assert outcome.parameters == pytest.approx(LIBRARY, rel=0.08)
    assert outcome.errors["all"]["mean"] < 0.03
    assert outcome.errors["decode"]["rows"] == 3 * 9  # 8 KiB to 2 MiB
    assert outcome.errors["prompt"]["rows"] == 3 * 8  # 4 MiB to 512 MiB
    own = links.fit_custom("vllm", rows(lambda r: links.predict_custom(CUSTOM, LIBRARY, r)), LIBRARY, LINK)
    assert own.parameters == pytest.approx(CUSTOM, rel=0.08)


def test_one_row_that_went_wrong_does_not_move_the_fit():
    measured = rows(lambda r: links.predict_custom(CUSTOM, LIBRARY, r))
    measured.measured_s[5] *= 10
    assert links.fit_custom("vllm", measured, LIBRARY, LINK).parameters == pytest.approx(CUSTOM, rel=0.1)


@pytest.mark.slow
def test_kernels_are_left_out_where_they_are_not_seen():
    same = rows(lambda r: links.predict_library("all_reduce", LIBRARY, r))
    assert links.fit_custom("vllm", same, LIBRARY, LINK) is None
    direct = {name: value for name, value in CUSTOM.items() if name != "split_rate"}
    outcome = links.fit_custom("trtllm", rows(lambda r: links.predict_custom(direct, LIBRARY, r)), LIBRARY, LINK)
    assert "split_rate" not in outcome.parameters


def test_what_stands_of_nodes_is_kept_and_bad_fits_are_not_written():
    bad = {size: {"mean": 0.3, "p90": 0.5, "rows": 9} for size in ("all", "decode", "prompt")}
    outcome = links.FittedLink(part="all_reduce", parameters=LIBRARY, n_points=9, errors=bad, source="by hand")
    written = links.with_links({"name": "x", "links": {"node_devices": 4, "all_gather": {}}}, [outcome])
    assert written == {"name": "x", "links": {"node_devices": 4}}
    assert links.with_links({}, [])["links"]["node_devices"]["value"] == 8
    tray = replace(outcome, n_devices=4)
    assert links.with_links({}, [tray])["links"]["node_devices"]["value"] == 4


@pytest.mark.skipif(sys.platform == "win32", reason="aiconfigurator-core has no wheel for Windows")
@pytest.mark.slow
def test_shipped_links_come_from_the_package(tmp_path):
    out = tmp_path / "h100.toml"
    arguments = ["aiconfigurator-core", "--device", "h100", "--kernel", "links", "--out", str(out), "--json"]
    result = CliRunner().invoke(cli.commands["calibrate"], arguments, catch_exceptions=False)
    assert json.loads(result.output)["device"] == "H100"
    again, shipped = catalog.device(str(out)), catalog.device("h100")
    assert again.stacks == shipped.stacks
    assert again.links.fits().keys() == shipped.links.fits().keys()
    for part, fit in again.links.fits().items():
        for name, number in fit.quantities().items():
            assert number.si == pytest.approx(shipped.links.fits()[part].quantities()[name].si, rel=2e-3), (part, name)


@pytest.mark.skipif(sys.platform == "win32", reason="aiconfigurator-core has no wheel for Windows")
def test_tables_count_16_bit_elements_and_milliseconds():
    library, stacks = links.read("H100")
    gather = library["all_gather"]
    # 8 devices, 128 MiB in all: each receives 7/8 of it, which NVLink's 450 GB/s allow in 261 us at best
    row = np.flatnonzero((gather.n_devices == 8) & (gather.n_bytes == 2**27))[0]
    assert 261e-6 < gather.measured_s[row] < 2 * 261e-6
    assert len(stacks["vllm"].n_bytes) == 66  # 22 sizes, 3 numbers of devices, graphs only


@pytest.mark.skipif(sys.platform == "win32", reason="aiconfigurator-core has no wheel for Windows")
def test_engines_over_several_nodes_are_left_out():
    library, stacks = links.read("GB300")  # NCCL on a tray's 2 and 4 devices, engines on up to 16
    for rows in (*library.values(), *stacks.values()):
        assert set(rows.n_devices.tolist()) == {2, 4}


@pytest.mark.parametrize(
    ("source", "name", "out", "reason"),
    [
        ("times.csv", "h100", "o.toml", "times.csv: collectives are read from aiconfigurator-core only"),
        ("aiconfigurator-core", "h100", "o.txt", "must end in .toml"),
        ("aiconfigurator-core", "lpu-hbm", "o.toml", "has no link_bandwidth"),
        ("aiconfigurator-core", "a800-80gb", "o.toml", "not in aiconfigurator-core"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(tmp_path, source, name, out, reason):
    with pytest.raises(InputError, match=reason):
        links.run(source, str(tmp_path / out), device=name)
