"""What tests of several pages use."""

import pytest

from explorer_page import page as opened_page


@pytest.fixture(scope="module")
def one():
    """Compare with one design; not to be changed."""
    return opened_page()


@pytest.fixture
def few_cells(monkeypatch):
    """Few cells and lines of maps and crossovers: what a cell holds is tested with the questions."""
    from dse.explorer import crossovers
    from dse.questions import best_map

    monkeypatch.setattr(crossovers, "BATCHES", (1, 4))
    monkeypatch.setattr(crossovers, "INPUTS", (64,))
    monkeypatch.setattr(best_map.best_map, "__defaults__", ((1, 4), (64, 128), None))
    crossovers.st.cache_data.clear()
