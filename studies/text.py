"""The held-out text: modules of CPython 3.11.7 that no model that ships was trained on (PSF licence).

They stand in studies/data/held_out beside their licence; studies/training/files.csv has their SHA-256.
"""

from functools import cache

import numpy as np

from studies.weights import DATA

#: what thresholds and scales are calibrated on, and what is scored
CALIBRATION = ("string", "timeit")
SCORED = ("calendar", "difflib", "fractions", "ftplib", "heapq", "pprint", "statistics", "textwrap")


@cache
def held_out(names: tuple[str, ...]) -> np.ndarray:
    """The bytes of these modules, uint8, one after another."""
    folder = DATA / "held_out"
    return np.frombuffer(b"".join((folder / f"{name}.py.txt").read_bytes() for name in names), np.uint8)
