"""Shared fixtures: hypothesis without deadlines (shared machines are noisy), the command in this process, a browser."""

import pytest
from hypothesis import settings

from dse import cli

settings.register_profile("dse", deadline=None, max_examples=100)
settings.load_profile("dse")


@pytest.fixture
def run(capsys):
    """Run the command in this process: (exit status, standard output, standard error)."""

    def call(*args):
        with pytest.raises(SystemExit) as stop:
            cli.main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return call


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a running explorer, one for each process of the tests."""
    from browser import explorer

    with explorer(tmp_path_factory.mktemp("elsewhere")) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    """Chromium; no longer than a module, whose thread has no other event loop meanwhile."""
    from browser import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser, server):
    """A fresh page of the explorer; the test fails where something goes wrong in it (`browser.watched`)."""
    from browser import watched

    with watched(browser, server) as opened:
        yield opened
