"""Find the module that fits a kernel: the user's own kernel table here, the numbers that ship in a checkout."""

import importlib
from types import ModuleType

from dse.core import checkout

#: kernels whose numbers ship -> the module of the folder `calibration` that fits them
SHIPPED = {
    "links": "links",
    "served": "served",
    "power": "power",
    "host": "host",
    "implementation": "implementations",
    "framework": "frameworks",
    "backend": "backends",
}
#: of those, kernels that no device is named for
WITHOUT_DEVICE = ("host", "implementation", "framework", "backend")


def of_kernel(kernel: str) -> ModuleType:
    """The module of a kernel, which has `run` and `text`. Raises InputError where only a checkout has it."""
    if kernel not in SHIPPED:
        return importlib.import_module("dse.calibrate.write")
    return checkout.module(f"calibration.{SHIPPED[kernel]}", f"kernel = {kernel}")
