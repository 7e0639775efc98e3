"""Releases in order, their days, and what an answer says of the age of a measurement."""

import datetime
import itertools
import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.model import intervals, stacks
from dse.specs import catalog, releases
from dse.specs.stack import ServedStack

each = pytest.mark.parametrize


@each(
    ("stack", "release", "day"),
    [
        ("vllm", "0.33.0", "2026-11-02"),
        ("vllm", "0.19.0", "2026-04-03"),
        ("sglang", "0.5.9", "2026-02-23"),
        ("trtllm", "1.0.0rc3", "2025-07-16"),
        ("vllm", "0.33.7", "2026-11-02"),  # not listed: the last before it
        ("vllm", "0.16.4", "2026-02-26"),
        ("vllm", "", "2026-11-02"),  # none: the newest
        ("vllm", "nightly-dev", "2026-11-02"),
        ("trtllm", "1.1.0rc2.post2", "2025-12-19"),  # in containers alone, between 1.1.0rc2 and the end of 1.1.0
        ("sglang", "0.0.1", "2024-01-16"),  # older than all: the oldest
    ],
)
def test_the_day_of_a_release(stack, release, day):
    assert str(releases.dates(stack)[releases.listed(stack, release)]) == day


def test_no_days_no_weeks():
    assert releases.listed("llama.cpp", "b4000") == ""
    assert releases.weeks_between("llama.cpp", "b4000", "b5000") == 0


def test_weeks_between():
    # 3 April to 2 November: 27 + 31 + 30 + 31 + 31 + 30 + 31 + 2 days
    assert releases.weeks_between("vllm", "0.19.0", "0.33.0") == pytest.approx(213 / 7)
    assert releases.weeks_between("vllm", "0.33.0", "0.19.0") == pytest.approx(-213 / 7)


@each("stack", ("vllm", "sglang", "trtllm"))
def test_releases_come_in_order(stack):
    """Final releases of one line of numbers come out in their order."""
    days = releases.dates(stack)
    final = sorted((name for name in days if name.replace(".", "").isdigit()), key=releases.release_of)
    assert len(final) > 20
    assert all(isinstance(day, datetime.date) for day in days.values())
    late = [(a, b) for a, b in itertools.pairwise(final) if days[a] > days[b]]
    assert len(late) <= 1, late


def text(stack, measured, asked):
    served = ServedStack.model_construct(measured=measured)
    return stacks.age_text(stack, served, SimpleNamespace(stack=f"{stack}@{asked}" if asked else stack))


def test_what_an_answer_says_of_the_age():
    assert text("vllm", "0.19.0", "0.33.0") == "measured on vLLM 0.19.0, 30 weeks before 0.33.0"
    assert text("vllm", "0.19.0", "") == "measured on vLLM up to 0.19.0, 30 weeks before 0.33.0"
    assert text("vllm", "0.16.0", "0.15.1") == "measured on vLLM 0.16.0, 3 weeks after 0.15.1"
    assert text("sglang", "0.5.9", "0.5.9") == ""  # the one asked for
    assert text("vllm", "", "0.33.0") == text("llama.cpp", "b4000", "b5000") == ""


def test_the_newest_that_was_measured_counts_where_none_is_asked_for():
    server = catalog.servers()["vllm"]
    assert server.nearest("") == server.nearest("99")


@given(st.sampled_from(sorted(releases.dates("vllm"))), st.sampled_from(sorted(releases.dates("vllm"))))
def test_releases_further_apart_differ_more(one, other):
    interval, week = intervals.of_age("vllm", one, f"vllm@{other}"), catalog.shared_errors().age.week
    weeks = abs(releases.weeks_between("vllm", one, other))
    assert interval.low * interval.high == pytest.approx(1)
    assert math.log(interval.high) == pytest.approx(week * math.sqrt(weeks))
    nearer = intervals.of_age("vllm", one, f"vllm@{one}")
    assert nearer.high == 1 <= interval.high


@pytest.mark.parametrize(
    "asked",
    [
        ("load", ()),
        ("interactivity", ("--splits", "1", "--quantizers", "fp8")),
        ("formats", ("--quantizers", "fp8", "--batch", "8")),
    ],
)
def test_answers_say_how_old_their_times_are(run, asked):
    """By releases.toml vLLM 0.19.0 and 0.33.0 are 30 weeks apart; of the release itself nothing is said."""
    question, more = asked
    words = ("ask", question, "--device", "h200", "--model", "qwen3-8b", *more)
    said = "Times: measured on vLLM up to 0.19.0, 30 weeks before 0.33.0."
    assert run(*words)[1].splitlines().count(said) == 1
    assert json.loads(run(*words, "--json")[1])["age"] == said
    code, out, err = run(*words, "--stack", "vllm@0.19.0", "--json")
    assert code == 0, err
    assert json.loads(out)["age"] == ""
