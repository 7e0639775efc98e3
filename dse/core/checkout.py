"""The folder calibration stands beside the package in a checkout, and is not in the wheel."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from dse.core.errors import InputError

ROOT = Path(__file__).parents[2]


def module(name: str, user: str) -> ModuleType:
    """Import a module beside the package, such as `calibration.links`, for `user`, the option or command that needs it.

    Raises InputError where there is no checkout.
    """
    folder = name.partition(".")[0]
    if not (ROOT / folder / "__init__.py").is_file():
        raise InputError(
            f"{user}: is not installed with the package: run it in a checkout of the repository, which has a folder "
            f"{folder}"
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return import_module(name)
