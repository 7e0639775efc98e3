"""Shipped traces: what they say, and that samples are like them."""

import tomllib

import numpy as np
import pytest

from cases import each
from dse.core.errors import InputError, LimitError
from dse.serving import trace_tables as traffic_tables
from dse.serving.requests import Lengths, Moments, Requests
from scripts import traffic_tables as maker

TRACES = ("azure-conv", "azure-code")
by_trace = each("name", TRACES)
#: of the published files, by pandas and numpy alone: E[largest of 16, 32, 64, 128 outputs] / E[output]
GAINS = {"azure-conv": (2.400, 2.663, 2.975, 3.322), "azure-code": (5.666, 8.287, 11.806, 16.363)}
#: the same of prompts
PADDING = {"azure-conv": (3.284, 3.714, 3.995, 4.338), "azure-code": (3.174, 3.497, 3.614, 3.631)}
#: prompt and answer of the longest request, by awk
LONGEST = {"azure-conv": 14089, "azure-code": 7841}
#: requests, mean prompt, mean answer, mean decode context, seconds from first to last
KNOWN = {
    "azure-conv": (19366, 1154.697408, 211.125942, 1227.479005, 3501.721937),
    "azure-code": (8819, 2047.848282, 27.882526, 2131.426184, 3435.948056),
}


def test_what_ships():
    assert sorted(traffic_tables.files()) == sorted(TRACES)
    with pytest.raises(InputError, match="did you mean azure-conv"):
        traffic_tables.load("azure-con")


@by_trace
def test_moments_are_those_of_the_trace(name):
    moments = traffic_tables.load(name).moments
    found = (
        moments.n_requests,
        moments.mean_input_tokens,
        moments.mean_output_tokens,
        moments.mean_decode_context_tokens,
        moments.duration_s,
    )
    assert found == pytest.approx(KNOWN[name], rel=2e-8)  # as printed


@by_trace
def test_every_file_names_source_licence_and_change(name):
    path = traffic_tables.files()[name]
    document = tomllib.loads(path.read_text())
    assert "arXiv:2311.18677" in document["source"]
    assert document["licence"].startswith("CC BY 4.0")
    assert "Microsoft; changed:" in document["attribution"]
    assert document["kind"] == "derived"
    assert document["quantiles"]["levels"] == traffic_tables.LEVELS.tolist()
    assert document["joint"]["levels"] == traffic_tables.BIN_LEVELS.tolist()
    assert path.read_text() == maker.to_toml(traffic_tables.load(name))


@by_trace
def test_no_sampled_request_is_longer_than_the_trace(name):
    tables = traffic_tables.load(name)
    typical = tables.typical()
    assert (typical.input_tokens + typical.output_tokens).max() == tables.longest_tokens
    assert tables.longest_tokens == LONGEST[name]
    drawn = traffic_tables.sample(name, 200_000)
    assert (drawn.input_tokens + drawn.output_tokens).max() <= tables.longest_tokens


MOMENTS = (
    ("mean_input_tokens", 0.005),
    ("mean_output_tokens", 0.005),
    ("mean_input_squared", 0.005),
    ("mean_output_squared", 0.03),
    ("mean_input_output", 0.005),
    ("mean_decode_context_tokens", 0.005),
)


@by_trace
def test_typical_requests_are_like_the_trace(name):
    tables = traffic_tables.load(name)
    lengths = Lengths.of(tables.typical())
    for moment, close in MOMENTS:
        assert getattr(lengths.moments, moment) == pytest.approx(getattr(tables.moments, moment), rel=close), moment
    assert lengths.moments.rate_per_s == pytest.approx(tables.moments.rate_per_s, rel=1e-3)
    mean_in, mean_out = tables.moments.mean_input_tokens, tables.moments.mean_output_tokens
    for batch, gain, padding in zip((16, 32, 64, 128), GAINS[name], PADDING[name], strict=True):
        assert lengths.largest_output(batch) / mean_out == pytest.approx(gain, rel=0.02)
        assert lengths.longest_input(batch) / mean_in == pytest.approx(padding, rel=0.01)


@by_trace
@pytest.mark.parametrize("arrivals", ["poisson", "trace"])
def test_samples_are_like_the_trace(name, arrivals):
    tables = traffic_tables.load(name)
    found = traffic_tables.sample(name, 200_000, 3.0, seed=5, arrivals=arrivals)
    moments = Moments.of(found)
    for moment, close in MOMENTS:  # and 3 standard errors of E[O^2] on top
        assert getattr(moments, moment) == pytest.approx(getattr(tables.moments, moment), rel=close + 0.04), moment
    assert moments.mean_output_tokens == pytest.approx(tables.moments.mean_output_tokens, rel=0.02)
    assert moments.rate_per_s == pytest.approx(3.0, rel=0.12 if name == "azure-code" else 0.02)
    assert (np.diff(found.arrival_s) >= 0).all()
    assert found.arrival_s[0] == 0
    again = traffic_tables.sample(tables, 200_000, 3.0, seed=5, arrivals=arrivals)
    assert again.input_tokens.tolist() == found.input_tokens.tolist()
    other = traffic_tables.sample(name, 200_000, 3.0, seed=6, arrivals=arrivals)
    assert other.input_tokens.tolist() != found.input_tokens.tolist()


def test_the_traces_own_rate_by_default():
    found = Moments.of(traffic_tables.sample("azure-conv", 100_000))
    assert found.rate_per_s == pytest.approx(5.530136, rel=0.02)


def test_gaps_of_the_trace_are_burstier_than_poisson():
    def spread(arrivals):
        gaps = np.diff(traffic_tables.sample("azure-code", 50_000, 1.0, 0, arrivals).arrival_s)
        return gaps.std() / gaps.mean()

    assert spread("poisson") == pytest.approx(1.0, rel=0.03)
    assert spread("trace") > 8  # 13.2 in the trace


def test_tables_of_a_constant_trace_are_constant():
    same = np.full(100, 7)
    tables = maker.make(
        "same", Requests(np.arange(100.0), same, same * 2), title="", source="", licence="", attribution=""
    )
    found = traffic_tables.sample(tables, 1000, seed=1)
    assert set(found.input_tokens) == {7}
    assert set(found.output_tokens) == {14}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": 0}, "requests = 0: must be"),
        ({"n": True}, "requests = True"),
        ({"rate_per_s": 0}, "rate = 0: must be"),
        ({"rate_per_s": float("nan")}, "rate = nan"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"arrivals": "bursty"}, "must be poisson or trace"),
        ({"trace": "none"}, "is not shipped"),
    ],
)
def test_bad_samples(change, text):
    with pytest.raises(InputError, match=text):
        traffic_tables.sample(**{"trace": "azure-conv", "n": 10, **change})


def test_too_large_a_sample():
    with pytest.raises(LimitError, match="at most 20,000,000"):
        traffic_tables.sample("azure-conv", 20_000_001)


def test_too_few_requests_for_tables():
    with pytest.raises(InputError, match="at least 32"):
        maker.make("few", Requests(np.zeros(3), np.ones(3, int), np.ones(3, int)))
