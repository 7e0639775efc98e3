"""Errors as the lines that a person reads."""

from dse.core.errors import MAX_LINE, ClusterError


def test_a_cluster_names_each_thing_in_a_line_of_its_own():
    error = ClusterError(["part 1: lost\nits worker", "part 2: " + "x" * 2 * MAX_LINE])
    first, second = error.lines()
    assert first == "part 1: lost\\nits worker"
    assert (len(second), second[-3:]) == (MAX_LINE, "...")
    assert str(error).startswith("part 1: lost")
    assert error.exit_status == 4
