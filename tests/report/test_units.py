"""Units of explained numbers: each fits what its name ends in."""

import inspect
from importlib import import_module
from pathlib import Path

from cases import each
from dse.core.compiling import FORMULAS
from dse.model import formulas
from dse.model.explain import explained
from dse.model.point import Point
from dse.report.present import unit_of
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

#: ends of names, longest first, and what their unit ends with
ENDS = {
    "_bytes_per_s": ("B/s",),
    "_flops_per_s": ("FLOP/s",),
    "_tokens_per_s": ("tok/s",),
    "_per_s": ("/s",),
    "_s_per_token": ("s/token",),
    "_bits_per_token": ("bit/token",),
    "_million_tokens": ("USD per million tokens",),
    "_joules_per_token": ("J/token",),
    "_per_byte": ("J/B",),
    "_per_flop": ("J/FLOP",),
    "_per_hour": ("/h",),
    "_s": ("s",),
    "_w": ("W",),
    "_bytes": ("B",),
    "_bits": ("bit",),
    "_tokens": ("token",),
    "_frac": ("", "1"),
    "_share": ("", "1"),
}


def misfit(name, unit):
    """What a name promises, where its unit is another; empty where it fits, or promises nothing."""
    end = next((end for end in ENDS if f"_{name}".endswith(end)), "")
    if not end:
        return ""
    if end == "_per_s":
        fits = unit.endswith("/s")
    elif end == "_per_hour":
        fits = unit.endswith("/h")
    else:
        fits = unit in ENDS[end]
    return "" if fits else f"{name}: {unit!r} is not one of {ENDS[end]}"


def test_a_rate_is_not_a_time():
    """The report: elements a second and core, explained as `core_rate_per_s = 0 s`."""
    assert unit_of("core_rate_per_s") == "element/s"
    assert unit_of("requests_per_s") == "request/s"
    assert unit_of("rate_per_s") == "1/s"
    assert misfit("core_rate_per_s", "s")
    assert not misfit("core_rate_per_s", "element/s")


def test_every_formula_and_its_arguments():
    for path in Path(formulas.__file__).parent.glob("*.py"):
        import_module(f"dse.model.formulas.{path.stem}")
    wrong = [misfit(name, formula.unit) for name, formula in FORMULAS.items()]
    for formula in FORMULAS.values():
        wrong += [misfit(name, unit_of(name)) for name in inspect.signature(formula).parameters]
    assert list(filter(None, wrong)) == []


@each(
    ("device", "model", "quantizer", "work"),
    [
        ("h100", "llama3.1-8b", "fp8", {}),
        ("b200", "deepseek-v3", "fp16", {"tp": 8, "ep": 8, "dp_attention": True}),
        ("a100-80gb", "llama2-7b", "kivi", {"memory": "paper", "model_kind": "ideal"}),
        ("oaken-hbm", "llama2-7b", "oaken", {"batch": 8}),
        ("h200", "qwen3-235b-a22b", "fp16", {"tp": 8, "pp": 2, "weights": "fp8"}),
    ],
)
def test_every_explained_number(device, model, quantizer, work):
    plan = build(model, quantizer)
    _, steps = explained(Point(catalog.device(device), plan, Workload(**work)))
    assert len(steps) > 20
    wrong = [misfit(step.name, step.unit) for step in steps.values()]
    wrong += [misfit(term, unit_of(term)) for step in steps.values() for term in step.terms]
    assert sorted({*filter(None, wrong)}) == []
