"""The equations, one file per quantity, each a small function of plain numbers in SI base units.

A formula is plain Python, so integers stay exact at any size. `array(fn)` gives the same function over numpy
arrays and `jit(fn)` the same for numba kernels; both compile on first use and agree with the plain call bit for
bit. Only + - * / // min max and comparisons are used.
"""

from dse.formulas.core import FORMULAS, Formula, array, formula, jit

__all__ = ["FORMULAS", "Formula", "array", "formula", "jit"]
