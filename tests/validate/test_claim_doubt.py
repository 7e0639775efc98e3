"""`dse ask doubt --claim`: which number inside its range would give what a paper prints, by hand."""

import re

import pytest
from click.testing import CliRunner

import dse
from dse.cli.main import cli
from dse.core.errors import InputError
from dse.validate import claims
from dse.validate.claims import Modeled, designs


def effect_of(found, name, device):
    return next(e for e in found.effects if e.number.name == name and device in e.devices)


def test_cores_are_named_for_the_order_of_figure_13():
    """With 256 cores both GPUs lead at 1K and 2K and QServe at 4K; vLLM at 4K does not, on either memory."""
    found = dse.doubt(claim="oaken-f13-gpus-first")
    cores = effect_of(found, "token_cores", "Oaken-HBM")
    assert cores.devices == ("Oaken-HBM", "Oaken-LPDDR")  # one chip: both together
    assert (cores.number.low, cores.number.high) == (128, 256)
    assert cores.at_low == found.base
    assert found.base.n_held == 5
    assert not found.base.holds
    left = {name for name, ratio in cores.at_high.orders.items() if ratio <= 1}
    assert left == {"vLLM over Oaken-HBM at 4,096 tokens", "vLLM over Oaken-LPDDR at 4,096 tokens"}
    assert cores.flips_at is None
    # outside of it: the first whole number of cores from which all of the orders are as printed
    ratios = [
        claims.oaken_speed._designed(f"oaken-hbm:token_cores={n} core", "llama2-13b", "oaken", **work)
        for work in [{"batch": 16, "input_tokens": 2048, "output_tokens": 2048}]
        for n in (cores.beyond_at - 1, cores.beyond_at)
    ]
    vllm = claims.oaken_speed._gpu(
        "llama2-13b", "fp16", batch=16, input_tokens=2048, output_tokens=2048, **designs.SERVED
    )
    assert ratios[1] < vllm <= ratios[0]
    text = found.text()
    assert "No number inside its range would give it; nearest: token_cores (Oaken-HBM, Oaken-LPDDR) at 256 core" in text
    assert found.table["name"].iloc[0] == "token_cores"


def test_a_number_is_halved_to_where_the_verdict_changes():
    """A share s = 1 / (1 + rest / busy) with busy as 1 / rate: 15 % above 3.23 % is 0.0371, from the share as given."""
    found = dse.doubt(claim="oaken-dequant-share")
    engine, share = effect_of(found, "engine_rate", "Oaken-LPDDR"), found.base.value
    edge = 0.0323 * 1.15
    by_hand = 58e12 * (share / (1 - share)) / (edge / (1 - edge))
    assert engine.flips_at == pytest.approx(by_hand, rel=30 / 58 / 2**11)  # twelve halvings of 28 to 58
    assert (engine.at_low.holds, engine.at_high.holds, found.base.holds) == (False, True, True)
    assert "Would take it away" in found.text()
    assert found.to_json()["claim"]["id"] == "oaken-dequant-share"


def test_what_no_longer_runs_takes_a_claim_away(monkeypatch):
    """Llama2-70B needs 138 of 160 GB on two A100s: not with four fifths of them."""

    def ours():
        assert designs.results_at("2xa100-80gb", "llama2-70b")["feasible"]
        return Modeled(1.58, "")

    monkeypatch.setitem(claims.FUNCTIONS, "oaken-tput-vs-qserve", ours)
    found = dse.doubt(claim="oaken-tput-vs-qserve")
    share = effect_of(found, "usable_frac", "2xA100-80GB")
    assert share.at_low.text("x") == "does not run"
    assert not share.at_low.holds


def test_design_points_are_as_a_claim_asks_for_them_afterwards():
    before = claims.evaluate("oaken-dequant-share")
    with designs.watched(lambda device, plan, work: (device.model_copy(update={"engine_rate": None}), plan)) as seen:
        pass
    assert seen == []
    assert claims.evaluate("oaken-dequant-share") == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--claim", "oaken-f13-gpu"], "claim = 'oaken-f13-gpu': did you mean oaken-f13-gpus-first"),
        (["--claim", "oaken-area"], "claim = 'oaken-area': rests on no number of a device"),
        (["--claim", "oaken-area", "--device", "h100"], "device = 'h100': has no effect with --claim"),
        (["--model", "llama2-7b"], "--device is missing: see dse ask doubt --help"),
        (["--device", "h100"], "--model is missing: see dse ask doubt --help"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(words, told):
    with pytest.raises(InputError, match=re.escape(told)):
        CliRunner().invoke(cli, ["ask", "doubt", *words], catch_exceptions=False)
