"""Choices of the packed formats where the papers are silent: the side of -0, and what fills an odd row."""

import numpy as np
import pytest

from kernels_ref import KIVI, NF4, Atom, Oaken, PerTokenInteger, QServe, half, nf4, packing, storage
from kernels_ref.oaken import paper

#: -0 between two numbers: three channels, so that the second byte has room for one more code
ROW = np.array([[1.0, -0.0, -2.0]], np.float16)


def test_oaken_takes_minus_zero_to_the_lower_side():
    # thresholds +-0.5: 1 and -2 are dense, 0.5 and -1.5 behind them: codes 15 and 0. -0 is the innermost group's only
    # member, code 0; its entry: channel 1, group 0, and the sign 1 in bit 7. It comes back as -0
    packed = Oaken((-5.0, -0.5), (5.0, 0.5)).quantize(ROW)
    assert packed.buffers["dense"].tolist() == [[0x0F, 0x00 | storage.odd_pad << 4]]
    assert packed.buffers["coo"].tolist() == [1 | 1 << 7]
    assert packed.buffers["meta"].view(np.uint16)[0, -2:].tolist() == [0, 0]  # minimum and maximum: +0
    assert np.signbit(packed.dequantize()).tolist() == [[False, True, True]]
    assert paper.UPPER_FROM.view(np.uint16) == 0


def test_oaken_with_minus_zero_on_the_upper_side(monkeypatch):
    monkeypatch.setattr(paper, "UPPER_FROM", np.float16(-0.0))
    paper.layout_of.cache_clear()
    packed = Oaken((-5.0, -0.5), (5.0, 0.5)).quantize(ROW)
    paper.layout_of.cache_clear()
    assert packed.buffers["coo"].tolist() == [1]
    assert not np.signbit(packed.dequantize())[0, 1]


@pytest.mark.parametrize("method", [NF4(block=3), PerTokenInteger(4)], ids=["nf4", "int4"])
def test_minus_zero_has_the_code_of_zero_and_decodes_to_plus_zero(method):
    packed, plus = method.quantize(ROW), method.quantize(np.array([[1.0, 0.0, -2.0]], np.float16))
    assert packed.buffers["codes"].tolist() == plus.buffers["codes"].tolist()
    assert packed.dequantize().view(np.uint16)[0, 1] == 0


def test_of_both_zeros_kivi_stores_minus_zero_as_the_minimum_and_decodes_plus_zero():
    """SinkQ has KIVI's core. 16 tokens of one channel: both zeros in either order, then ones up to 2."""
    for zeros in ((-0.0, 0.0), (0.0, -0.0)):
        x = np.array([*zeros, *[1.0] * 13, 2.0], np.float16).reshape(1, 1, 16, 1)
        method = KIVI(2, 16, 0)
        packed = method.quantize(x, "key")
        assert packed.buffers["key_mins"].view(np.uint16).reshape(-1).tolist() == [0x8000]
        assert method.dequantize(packed).view(np.uint16).reshape(-1)[:2].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("method", "last", "pad"),
    [
        # 4-bit codes of the last channel and of what fills the byte; NF4 has the first code in the high nibble
        (NF4(block=3), 0 << 4, nf4.ZERO),
        (PerTokenInteger(4), 9, storage.odd_pad << 4),  # -7
        (QServe(), 0, storage.odd_pad << 4),  # the least of the row
        (Atom(group=3), 0, storage.odd_pad << 4),
    ],
    ids=["nf4", "int4", "qserve", "atom"],
)
def test_an_odd_row_ends_with_the_named_code(method, last, pad):
    assert method.quantize(ROW).buffers["codes"][0, -1] == last | pad


def test_the_pad_is_declared_once():
    assert packing.ODD_PAD == storage.odd_pad == 0
    assert nf4.CODEBOOK[nf4.ZERO] == 0  # bitsandbytes
    assert half.order(np.uint16(0x8000)) == -1
