"""Oaken's outliers as a sign and a magnitude, against the kernel where both store the same."""

import numpy as np
import pytest

import kernels_ref
from studies import oaken_reading

GROUPS = [((-2.0, -0.1), (2.1, 0.12), 2), ((-3.0, -2.0, -0.1), (3.0, 2.1, 0.12), 3), ((-2.0,), (2.1,), 2)]


@pytest.mark.parametrize(("lower", "upper", "dense"), GROUPS)
def test_with_15_steps_it_is_the_kernel_with_5_bit_outliers(lower, upper, dense):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 2, 33, 32)) * rng.choice([0.05, 1, 2], size=(2, 2, 33, 32))
    x[0, :, 0], x[0, :, 1], x[0, :, 2] = 0, 1.0, -5.0  # rows with empty groups, and of one value
    x = x.astype(np.float16)
    method = kernels_ref.Oaken(lower, upper, dense=dense)
    assert np.array_equal(oaken_reading.decoded(x, method, 15), method.quantize(x).dequantize().astype(np.float16))


def test_seven_steps_by_hand():
    # one token of two heads; outer group beyond +-2: 2.5, 9.5 and -3: magnitudes 0.5, 7.5 and 1; a step is 7 / 7 = 1
    x = np.array([[[[2.5, 9.5]], [[-3.0, 0.0]]]], np.float16)
    method = kernels_ref.Oaken((-2.0,), (2.0,), dense=2)
    # -3: (1 - 0.5) / 1 is half way: to the even 0, so 0.5 beyond -2; 0 is alone in the dense group
    assert oaken_reading.decoded(x, method, 7).tolist() == [[[[2.5, 9.5]], [[-2.5, 0.0]]]]
    # the signed 4-bit code has 16 steps from -1 to 7.5 and takes 0.5 to 0.7, -1 to -1
    signed = kernels_ref.Oaken((-2.0,), (2.0,), dense=2, outlier_bits=4)
    assert signed.quantize(x).dequantize()[0, 0, 0, 0] == pytest.approx(2.7, abs=0.01)
