"""The equations, one file per quantity, each a function of plain numbers in SI base units (dse/core/compiling.py)."""
