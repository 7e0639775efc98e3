"""What is no device or model is refused in a line; SmoothQuant's bits say how they are asked for."""

import pytest

import dse
from cases import each
from dse.core.errors import InputError


@each("given", [["h100"], ("h100", "h200"), 5, {"h100"}])
def test_a_device_is_one_name(given):
    with pytest.raises(InputError, match=r"must be one name or file, or what dse\.device"):
        dse.interactivity(given, "llama3.1-8b")
    with pytest.raises(InputError, match=r"must be one name or file, or what dse\.model"):
        dse.evaluate("h100", given)


def test_weights_by_name_beside_bits_of_activations():
    with pytest.raises(InputError, match="8 and 8 for SmoothQuant"):
        dse.Workload(weights="int8", activation_bits=8)
    assert dse.Workload(weights_bits=8, activation_bits=8).activation_bits == 8


def test_formats_are_quantizers_everywhere():
    assert dse.formats("h100", "llama3.1-8b", quantizers=["fp8"]).formats[1].name == "fp8"
