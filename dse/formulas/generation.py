"""Closed-form sums over the steps of a generation, where every time is a straight line within a piece."""

from dse.formulas.core import formula


@formula("s", "m * (first + slope * (start + (m - 1) / 2))", "arithmetic series")
def sum_of_line(first, slope, start, n_steps):
    """Sum of first + slope * i over i = start .. start + n_steps - 1."""
    return n_steps * (first + slope * (start + (n_steps - 1) * 0.5))


@formula("1", "number of leading i in 0..m-1 on which line 0 and line 1 keep their order", "crossing of two lines")
def steps_before_crossing(first_0, slope_0, first_1, slope_1, n_steps):
    """Steps before line 0 and line 1 change places (n_steps if they never do)."""
    gap, closing = first_0 - first_1, slope_0 - slope_1
    last = gap + closing * (n_steps - 1)
    if closing == 0 or (gap >= 0 and last >= 0) or (gap <= 0 and last <= 0):
        return n_steps
    return min(max(int(-gap / closing) + 1, 1), n_steps)


@formula("s", "sum over i = 0..m-1 of max(line 0, line 1)", "docs/model.md, Steps and times: pieces end at a crossing")
def sum_of_max2(first_0, slope_0, first_1, slope_1, start, n_steps):
    """Sum of the larger of two lines over i = start .. start + n_steps - 1."""
    begin_0, begin_1 = first_0 + slope_0 * start, first_1 + slope_1 * start
    before = steps_before_crossing(begin_0, slope_0, begin_1, slope_1, n_steps)
    after = n_steps - before
    head_0 = sum_of_line(first_0, slope_0, start, before)
    head_1 = sum_of_line(first_1, slope_1, start, before)
    tail_0 = sum_of_line(first_0, slope_0, start + before, after)
    tail_1 = sum_of_line(first_1, slope_1, start + before, after)
    return max(head_0, head_1) + max(tail_0, tail_1)


@formula("s", "sum over i = 0..m-1 of max(0, line 2 - max(line 0, line 1))", "docs/model.md, Dequantisation")
def sum_of_excess(first_0, slope_0, first_1, slope_1, first_2, slope_2, n_steps):
    """What line 2 adds to a step that already takes the larger of lines 0 and 1, over i = 0 .. n_steps - 1."""
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
