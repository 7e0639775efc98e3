"""Find the module that fits a kernel: the user's own kernel table here, the numbers that ship in a checkout."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from dse.core.errors import InputError

#: kernels whose numbers ship -> the module of the folder `calibration` that fits them
SHIPPED = {"links": "links", "served": "served", "power": "power", "host": "host", "implementation": "implementations"}
#: of those, kernels that no device is named for
WITHOUT_DEVICE = ("host", "implementation")


def of_kernel(kernel: str) -> ModuleType:
    """The module of a kernel, which has `run` and `text`. Raises InputError where only a checkout has it."""
    if kernel not in SHIPPED:
        return importlib.import_module("dse.calibrate.write")
    root = Path(__file__).parents[2]
    if not (root / "calibration" / "part.py").is_file():
        raise InputError(
            f"kernel = {kernel}: fits numbers that ship and is not installed with them: run it in a checkout of the "
            "repository, which has a folder calibration"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module(f"calibration.{SHIPPED[kernel]}")
