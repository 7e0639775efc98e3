"""What tests of several pages use."""

import pytest

import explorer_page
from dse.explorer import widgets
from dse.figures.export import image


@pytest.fixture(autouse=True)
def no_defects(caplog):
    """A defect is a sentence on its part of a page: the log tells it from what a reader did."""
    yield
    assert [record.exc_text for record in caplog.records if record.name == widgets.__name__] == []


@pytest.fixture(autouse=True)
def no_picture_to_copy(request, monkeypatch):
    """A figure whose panel is open draws its picture to copy: looked at where it is tested alone."""
    export = image.export
    if request.path.stem != "test_explorer_downloads":
        monkeypatch.setattr(
            image, "export", lambda chart, kind, *more: b"" if kind == "png" else export(chart, kind, *more)
        )


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory):
    """Folder that the session's explorer runs in, with its log and `browser.ASKED`."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="session")
def server(server_folder):
    """Address of a running explorer, one for each process of the tests; fails at the end if it asked another host."""
    from browser import ASKED, explorer

    with explorer(server_folder) as address:
        yield address
    assert (server_folder / ASKED).read_text() == ""
    assert widgets.FAILED not in (server_folder / "server.log").read_text()


@pytest.fixture(scope="module")
def profile():
    """A profile of Chromium; no longer than a module, whose thread has no other event loop meanwhile."""
    from browser import chromium, new_profile

    with chromium() as opened:
        yield new_profile(opened)


@pytest.fixture
def page(profile, server):
    """A fresh page of the explorer; the test fails where something goes wrong in it (`browser.watched`)."""
    from browser import watched

    with watched(profile, server) as opened:
        yield opened


@pytest.fixture(scope="module")
def one():
    """Compare with one design; not to be changed."""
    return explorer_page.page()


@pytest.fixture
def few_cells(monkeypatch):
    """Few cells and lines of maps and crossovers: what a cell holds is tested with the questions."""
    from dse.explorer.why import what_if
    from dse.questions import best_map

    monkeypatch.setattr(what_if, "BATCHES", (1, 4))
    monkeypatch.setattr(what_if, "INPUTS", (64,))
    monkeypatch.setattr(best_map, "BATCHES", (1, 4))
    monkeypatch.setattr(best_map, "INPUTS", (64, 128))
    what_if.st.cache_data.clear()
