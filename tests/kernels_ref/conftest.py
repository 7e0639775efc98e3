"""Fixtures of the tests of quantizers."""

import numba
import pytest


@pytest.fixture(scope="module")
def one_thread():
    """Launching threads for a handful of numbers is slow; several threads have tests of their own."""
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(threads)
