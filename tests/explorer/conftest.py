"""What tests of several pages use."""

import pytest

from explorer_page import page as opened_page


@pytest.fixture(scope="module")
def opened():
    """What if as first opened; not to be changed."""
    return opened_page()


@pytest.fixture
def few_cells(monkeypatch):
    """Few cells and lines on the page "Where does it pay": what a cell holds is tested with the questions."""
    from dse.explorer.pages import best_quantizer
    from dse.questions import best_map

    monkeypatch.setattr(best_quantizer, "BATCHES", (1, 4))
    monkeypatch.setattr(best_quantizer, "INPUTS", (64,))
    monkeypatch.setattr(best_map.best_map, "__defaults__", ((1, 4), (64, 128), None))
    best_quantizer.st.cache_data.clear()
