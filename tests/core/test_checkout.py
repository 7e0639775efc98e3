"""What stands beside the package says so in one line where there is no checkout."""

import pytest

from dse.core import checkout
from dse.core.errors import InputError


def test_without_a_checkout_the_reason_is_one_line(monkeypatch, tmp_path):
    assert checkout.module("calibration.links", "calibrate").__name__ == "calibration.links"
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    with pytest.raises(InputError, match="run it in a checkout of the repository, which has a folder calibration"):
        checkout.module("calibration.links", "calibrate --kernel links")
