"""Closed-form sums over the steps of a generation, where every time is a straight line within a piece."""

import math

from dse.core.compiling import formula

#: seconds of the first step, and what each step adds
Line = tuple[float, float]
#: steps at the start of a sum that are added one by one: beyond, the end corrections are exact to 1e-12
LOOPED_STEPS = 24


@formula("s", "m * (first + slope * (start + (m - 1) / 2))", "arithmetic series")
def sum_of_line(first: float, slope: float, start: float, n_steps: int) -> float:
    """Sum of first + slope * i over i = start .. start + n_steps - 1."""
    return n_steps * (first + slope * (start + (n_steps - 1) * 0.5))


@formula("1", "number of leading i in 0..m-1 on which line 0 and line 1 keep their order", "crossing of two lines")
def steps_before_crossing(first_0: float, slope_0: float, first_1: float, slope_1: float, n_steps: int) -> int:
    """Steps before line 0 and line 1 change places (n_steps if they never do)."""
    gap, closing = first_0 - first_1, slope_0 - slope_1
    last = gap + closing * (n_steps - 1)
    if closing == 0 or (gap >= 0 and last >= 0) or (gap <= 0 and last <= 0):
        return n_steps
    return min(max(int(-gap / closing) + 1, 1), n_steps)


@formula(
    "s",
    "sum over i = 0..m-1 of max(line 0, line 1)",
    "docs/explanation/model.md, Steps and times: pieces end at a crossing",
)
def sum_of_max2(first_0: float, slope_0: float, first_1: float, slope_1: float, start: float, n_steps: int) -> float:
    """Sum of the larger of two lines over i = start .. start + n_steps - 1."""
    begin_0, begin_1 = first_0 + slope_0 * start, first_1 + slope_1 * start
    before = steps_before_crossing(begin_0, slope_0, begin_1, slope_1, n_steps)
    after = n_steps - before
    head_0 = sum_of_line(first_0, slope_0, start, before)
    head_1 = sum_of_line(first_1, slope_1, start, before)
    tail_0 = sum_of_line(first_0, slope_0, start + before, after)
    tail_1 = sum_of_line(first_1, slope_1, start + before, after)
    return max(head_0, head_1) + max(tail_0, tail_1)


@formula(
    "s", "sum over i = 0..m-1 of max(0, line 2 - max(line 0, line 1))", "docs/explanation/model.md, Dequantization"
)
def sum_of_excess(
    first_0: float, slope_0: float, first_1: float, slope_1: float, first_2: float, slope_2: float, n_steps: int
) -> float:
    """Sum over i = 0 .. n_steps - 1 of the excess of line 2 over the larger of lines 0 and 1."""
    before = steps_before_crossing(first_0, slope_0, first_1, slope_1, n_steps)
    after = n_steps - before
    if before == n_steps:
        swap = sum_of_line(first_0, slope_0, 0, n_steps) < sum_of_line(first_1, slope_1, 0, n_steps)
    else:
        swap = first_0 < first_1
    if swap:
        first_0, slope_0, first_1, slope_1 = first_1, slope_1, first_0, slope_0
    head = sum_of_max2(first_2 - first_0, slope_2 - slope_0, 0.0, 0.0, 0, before)
    tail = sum_of_max2(first_2 - first_1, slope_2 - slope_1, 0.0, 0.0, before, after)
    return head + tail


@formula("s", "integral of sqrt(a * (x^2 + k)) from x_0 to x_1", "antiderivative of sqrt(x^2 + k), k >= 0")
def integral_of_root(a: float, k: float, x_0: float, x_1: float) -> float:
    """Valid for a > 0, k >= 0, 0 <= x_0 <= x_1, x_1 > 0."""
    r_0, r_1 = math.sqrt(x_0 * x_0 + k), math.sqrt(x_1 * x_1 + k)
    step = x_1 - x_0
    rise = step * (x_1 + x_0) / (r_1 + r_0)  # r_1 - r_0 without cancellation
    area = x_1 * rise + step * r_0 + k * math.log1p((step + rise) / (x_0 + r_0))
    return math.sqrt(a) * 0.5 * area


@formula("s", "f1 / 12 - f3 / 720 + f5 / 30240, fn the nth derivative of sqrt(a * (x^2 + k))", "Euler-Maclaurin")
def end_correction(a: float, k: float, x: float) -> float:
    """Euler-Maclaurin correction at one end of a sum, beyond half of its value; take the difference of both ends."""
    r = math.sqrt(a * (x * x + k))
    d1 = a * x / r
    d2 = (a - d1 * d1) / r
    d3 = -3.0 * d1 * d2 / r
    d4 = -(3.0 * d2 * d2 + 4.0 * d1 * d3) / r
    d5 = -(10.0 * d2 * d3 + 5.0 * d1 * d4) / r
    return d1 / 12.0 - d3 / 720.0 + d5 / 30240.0


@formula(
    "s",
    "sum over i = 0..m-1 of sqrt(sum of the squares of four lines), none of which falls",
    "docs/explanation/model.md, Calibrated model: antiderivative and Euler-Maclaurin end corrections, the first steps "
    "one by one",
)
def sum_of_root(line_0: Line, line_1: Line, line_2: Line, line_3: Line, n_steps: int) -> float:
    """Sum of the root of squares over i = 0 .. n_steps - 1. Lines and slopes >= 0. Within 1e-11 of the loop."""
    (first_0, slope_0), (first_1, slope_1), (first_2, slope_2), (first_3, slope_3) = line_0, line_1, line_2, line_3
    a = slope_0 * slope_0 + slope_1 * slope_1 + slope_2 * slope_2 + slope_3 * slope_3
    b = 2.0 * (first_0 * slope_0 + first_1 * slope_1 + first_2 * slope_2 + first_3 * slope_3)
    c = first_0 * first_0 + first_1 * first_1 + first_2 * first_2 + first_3 * first_3
    if (a * n_steps + b) * n_steps <= 1e-15 * c:
        return n_steps * math.sqrt(c)
    looped = min(n_steps, LOOPED_STEPS)
    total = 0.0
    for i in range(looped):
        total = total + math.sqrt((a * i + b) * i + c)
    if n_steps == looped:
        return total
    shift = b / (2.0 * a)
    # k = (4 a c - b^2) / (4 a^2), written as the sum of squares that it is
    k = (
        (first_0 * slope_1 - first_1 * slope_0) * (first_0 * slope_1 - first_1 * slope_0)
        + (first_0 * slope_2 - first_2 * slope_0) * (first_0 * slope_2 - first_2 * slope_0)
        + (first_0 * slope_3 - first_3 * slope_0) * (first_0 * slope_3 - first_3 * slope_0)
        + (first_1 * slope_2 - first_2 * slope_1) * (first_1 * slope_2 - first_2 * slope_1)
        + (first_1 * slope_3 - first_3 * slope_1) * (first_1 * slope_3 - first_3 * slope_1)
        + (first_2 * slope_3 - first_3 * slope_2) * (first_2 * slope_3 - first_3 * slope_2)
    ) / (a * a)
    x_0, x_1 = shift + looped, shift + (n_steps - 1)
    ends = 0.5 * (math.sqrt(a * (x_0 * x_0 + k)) + math.sqrt(a * (x_1 * x_1 + k)))
    corrections = end_correction(a, k, x_1) - end_correction(a, k, x_0)
    return total + integral_of_root(a, k, x_0, x_1) + ends + corrections
