"""The public face: its examples, the packages that share a name with a function, and what it refuses."""

import doctest
import subprocess
import sys

import pytest

import dse
from dse import api
from dse.core.errors import InputError


def test_the_examples_in_the_docstrings_are_true():
    found = doctest.testmod(api, extraglobs={"dse": dse})
    assert found.attempted >= 10
    assert not found.failed


def test_every_public_name_is_there():
    assert {*api.__all__} <= {*dir(dse)}
    for name in api.__all__:
        assert getattr(dse, name) is not None


@pytest.mark.parametrize("first", ["import dse.model.evaluate, dse.sweep.sweeps, dse.report.page", "pass"])
def test_packages_with_the_name_of_a_function_can_be_called_and_imported_from(first):
    """Whatever was imported before."""
    code = f"""{first}
import dse
assert dse.model("llama2-7b").name == "llama2-7b"
assert len(dse.sweep({{"device": "h100", "model": "llama2-7b", "batch": [1, 2]}})) == 2
import dse.model.evaluate
from dse.sweep import sweeps
assert dse.model.evaluate.evaluate and callable(dse.report)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_loads_nothing():
    code = "import sys, dse; assert not {'numpy', 'pydantic', 'pandas', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_known_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"unknown 'batches'.*batch"):
        dse.evaluate("h100", "llama2-7b", batches=3)
    with pytest.raises(InputError, match="cannot stand beside"):
        dse.evaluate("h100", "llama2-7b", "fp16", dse.Workload(), batch=3)
    with pytest.raises(AttributeError, match="nothing"):
        dse.nothing  # noqa: B018
