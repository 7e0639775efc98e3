"""Checks of the parameters of methods: errors name the parameter, its value and what is allowed."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def shown(value: Any) -> str:
    """A value as it appears in a message: its repr, or its type where that is long or an array."""
    if isinstance(value, np.ndarray | list | tuple | dict):
        return f"({type(value).__name__})"
    text = repr(value)
    return text if len(text) <= 80 else f"({type(value).__name__})"


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ValueError unless `value` is one of `choices`, of the same type (True is not 1)."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{name} = {shown(value)}: must be one of {', '.join(repr(choice) for choice in choices)}")


def check_count(name: str, value: Any, low: int = 1) -> None:
    """Raise ValueError unless `value` is an int from `low` to 2^31 - 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
        raise ValueError(f"{name} = {shown(value)}: must be a whole number from {low} to {2**31 - 1}")


def check_scale(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a positive finite number, as a float32 too."""
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.float32(value) if number else np.float32(np.nan)
    if not (np.isfinite(narrow) and narrow > 0):
        raise ValueError(f"{name} = {shown(value)}: must be a positive number that float32 holds")
