"""What tests of the model share: correlations of errors that no fit moves."""

import pytest

from dse.specs import catalog
from factories import SHARED_ERRORS


@pytest.fixture
def by_hand(monkeypatch):
    """Errors of two servers have in common what `SHARED_ERRORS` says."""
    monkeypatch.setattr(catalog, "shared_errors", lambda: SHARED_ERRORS)
