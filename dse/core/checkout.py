"""The folders calibration and studies stand beside the package in a checkout, and are not in the wheel."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from dse.core.errors import InputError

ROOT = Path(__file__).parents[2]


def has(folder: str) -> bool:
    """Whether this is a checkout with that folder, not an installed package beside another of its name."""
    return (ROOT / "pyproject.toml").is_file() and (ROOT / folder / "__init__.py").is_file()


def module(name: str, user: str) -> ModuleType:
    """Import a module beside the package, such as `calibration.links`, for `user`, the option or command that needs it.

    Raises InputError where there is no checkout.
    """
    folder = name.partition(".")[0]
    if not has(folder):
        raise InputError(
            f"{user}: is not installed with the package: run it in a checkout of the repository, which has a folder "
            f"{folder}"
        )
    sys.path.insert(0, str(ROOT))  # before a folder of that name where the user works
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ROOT))
