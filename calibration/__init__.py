"""Fitters of the numbers that ship, beside the package and not in the wheel.

`dse calibrate TABLE --kernel links|served|power|host|implementation` runs them from a checkout. A user's own table of
attention or matrix products is fitted by `dse.calibrate`, which ships.
"""
