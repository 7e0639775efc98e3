"""How measured layouts differ from what is computed, and how good the choice among them is."""

from types import SimpleNamespace

import pytest

from benchmarks import measured_fronts as choice
from calibration import layout_factors
from dse import data
from dse.questions import measured_fronts

SHIPPED = measured_fronts.shipped()


def of(front, **more):
    """A measured deployment with other numbers."""
    return front._replace(limit_s=0.02, is_open=False, **more)


def test_factors_by_hand(monkeypatch):
    """Two layouts of one device: measured 1 : 0.5, computed 100 : 200 a device, so 2 above and below the middle of
    both; at another limit alike, so 1. What holds nothing, and a device with one layout, say nothing."""
    a, b, c, d = (
        of(SHIPPED[0], tp=tp, n_devices=tp, ratio=ratio) for tp, ratio in ((1, 1.0), (2, 0.5), (4, 1), (8, 1))
    )
    later = [one._replace(limit_s=0.05) for one in (a, b)]
    alone = d._replace(device="H100")
    computed = {a: 100.0, b: 200.0, later[0]: 50.0, later[1]: 25.0, c: 0.0, alone: 100.0}
    servers = {one: SimpleNamespace(holds=rate, of=one) for one, rate in computed.items()}
    monkeypatch.setattr(
        layout_factors,
        "Fleet",
        lambda server, *_: SimpleNamespace(computed_tokens_per_s=server.holds * server.of.n_devices),
    )
    lengths = a.input_tokens, a.output_tokens
    factors = layout_factors.factors_of(servers)
    assert factors == {
        a.key: {lengths: pytest.approx(2**0.5)},  # of 2 and 1
        b.key: {lengths: pytest.approx(0.5**0.5)},
    }
    assert layout_factors.text_of(factors).splitlines()[1].endswith(f"1,1,1,0,{lengths[0]},{lengths[1]},1.41")


def test_the_file_is_as_the_fitter_writes_it(monkeypatch, tmp_path):
    """All of it as `text_of` writes it; the numbers of one model as they are computed today."""
    shipped = measured_fronts.layout_factors()
    assert layout_factors.text_of(shipped) == data.text("layout_factors.csv")
    ours = tuple(one for one in SHIPPED if one.model == "glm-5")
    monkeypatch.setattr(measured_fronts, "shipped", lambda: ours)
    monkeypatch.setattr(layout_factors, "SHIPPED", tmp_path / "out.csv")
    layout_factors.main()
    written = set((tmp_path / "out.csv").read_text().splitlines()[1:])
    assert written == {line for line in data.text("layout_factors.csv").splitlines() if line.startswith("glm-5")}


@pytest.fixture(scope="module")
def judge():
    return choice.Judge()


@pytest.mark.slow
@pytest.mark.parametrize("kind", choice.ALIKE)
def test_the_recommended_is_the_best_measured(monkeypatch, judge, kind):
    """Of deployments measured side by side (InferenceX's and others), as the search ranks them by fronts of other
    lengths: 5 % below the best in the median, 15 % at the 90th percentile, better than rules; promised loads kept."""
    monkeypatch.setattr(measured_fronts, "layout_factors", measured_fronts.layout_factors)  # the judge leaves some out
    judged = judge.judged(kind)
    found = [one for one in judged if one.pick]
    assert len(found) >= 0.95 * len(judged)
    middle, near, most = choice.figures(one.loss for one in found)
    assert middle <= 0.05
    assert near >= 0.85
    assert most <= 0.15
    for rule in choice.RULES.values():
        by_rule = choice.figures(choice.loss(one.front, max(one.front, key=rule)) for one in found)
        assert middle <= by_rule[0]
        assert near > by_rule[1]
        assert most < by_rule[2]
    kept = [one.keeps for one in found if one.keeps is not None]
    assert sum(kept) >= 0.85 * len(kept)
