"""The fitters of shipped numbers: found in a checkout, and named in a line where they are not installed."""

from pathlib import Path

import pytest

from dse.calibrate import fitters
from dse.core import checkout
from dse.core.errors import InputError


def test_every_kernel_has_a_module_that_runs_and_says():
    for kernel in ("attention", "gemm", *fitters.SHIPPED):
        module = fitters.of_kernel(kernel)
        assert callable(module.run)
        assert callable(module.text)
        assert module.__name__.startswith("calibration." if kernel in fitters.SHIPPED else "dse.calibrate.")


def test_without_a_checkout_the_reason_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    for kernel in fitters.SHIPPED:
        with pytest.raises(InputError, match="run it in a checkout of the repository, which has a folder calibration"):
            fitters.of_kernel(kernel)
    assert Path(fitters.of_kernel("attention").__file__).name == "write.py"
