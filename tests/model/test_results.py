"""Declarations of results agree with the formulas that give them: parameter names are the graph."""

import pytest

from dse.core.compiling import FORMULAS
from dse.model.engine import evaluate
from dse.model.explain import explained
from dse.model.point import Point
from dse.model.results import RESULTS, STEPS, section
from dse.model.results.declare import INTERVALS, MEASURED, SECTIONS
from dse.model.results.reads import DEVICE_PARAMETERS
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

DESIGNS = {
    "a server": ("h100", "llama3.1-8b", "fp8", {"batch": 64}),
    "cores and an engine": ("oaken-hbm", "llama2-7b", "oaken", {"batch": 300, "admission": "paged"}),
    "experts and links": ("b200", "gpt-oss-20b", "kivi", {"batch": 64, "tp": 4, "weights": "mxfp4-experts"}),
    "papers' memory": ("a100-80gb", "llama2-7b", "nqkv", {"batch": 64, "memory": "paper", "model_kind": "ideal"}),
    "no cache": ("a100-80gb", "llama2-7b", "fp16", {"batch": 4, "kv_cache": False}),
    "no room": ("h100", "llama2-70b", "fp16", {"batch": 16}),
}


def unread(result, steps, device):
    """What the formulas behind a result take of a device, and its declaration does not name."""
    taken, seen, names = set(), set(), [result]
    while names:
        name = names.pop()
        if name in seen or name not in steps:
            continue
        seen.add(name)
        for term, value in steps[name].terms.items():
            field = DEVICE_PARAMETERS.get(term)
            if field and (quantity := getattr(device, field)) is not None and value == quantity.si:
                taken.add(field)
            if term in steps and steps[term].value == value:
                taken |= set(RESULTS[term].reads) if term in RESULTS else set()
                names.append(term)
    return taken - set(RESULTS[result].reads)


@pytest.mark.parametrize("design", DESIGNS)
def test_a_result_reads_what_its_formulas_take(design):
    device, model, quantizer, work = DESIGNS[design]
    point = Point(catalog.device(device), build(model, quantizer), Workload(**work))
    steps = explained(point)[1]
    wrong = {name: left for name in RESULTS if name in steps and (left := unread(name, steps, point.device))}
    wrong.pop("effective_capacity_bytes", None)  # of the data sheet: what a server reports has no part in it
    assert not wrong


def test_each_result_is_given_or_explained():
    """By what it declares or by a formula, in one design at least."""
    seen = {name for name, result in RESULTS.items() if result.chosen}
    for device, model, quantizer, work in DESIGNS.values():
        seen |= set(explained(Point(catalog.device(device), build(model, quantizer), Workload(**work)))[1])
    assert set(RESULTS) - seen == {"n_devices"}
    assert set(STEPS) <= seen


def test_names_titles_and_places_are_one_results_own():
    assert not set(RESULTS) & set(STEPS)
    titles = [result.title for result in RESULTS.values()]
    assert all(titles)
    assert len(titles) == len(set(titles))
    sections = (*SECTIONS, MEASURED, INTERVALS)
    places = [(line.section, line.place, name) for name, result in RESULTS.items() for line in result.lines]
    assert {name for name, *_ in places} == set(sections)
    assert len({place[:2] for place in places}) == len(set(places))


def test_a_section_shows_what_a_design_has():
    def shown(work, title="Time", model="llama3.1-8b"):
        point = Point(catalog.device("h100"), build(model, "fp8"), Workload(batch=8, **work))
        return [result.name for _, result in section(title, evaluate(point))]

    assert "collective_s" not in shown({})
    assert "collective_s" in shown({"tp": 2})
    assert "ttft_s" in shown({}, "How sure")
    assert "ttft_s" not in shown({"model_kind": "ideal"}, "How sure")
    assert "kv_pool_tokens" in shown({}, "Memory")
    assert "kv_pool_tokens" not in shown({"memory": "paper"}, "Memory")
    assert "kv_bytes_per_token_beyond_windows" not in shown({}, "Memory")
    assert "kv_bytes_per_token_beyond_windows" in shown({}, "Memory", "gpt-oss-20b")


def test_a_formula_of_a_results_name_has_its_unit():
    named = {name: RESULTS[name].unit for name in RESULTS if name in FORMULAS}
    assert {name: FORMULAS[name].unit for name in named} == named
