"""Memory that nobody holds any more."""

import ctypes
import gc


def give_back() -> None:
    """Return freed memory to the operating system, which the C library keeps for later by itself (malloc_trim)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


def free() -> None:
    """Search for garbage, and return what it held."""
    gc.collect()
    give_back()
