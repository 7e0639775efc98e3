"""Shared fixtures: hypothesis without deadlines (shared machines are noisy), and the command in this process."""

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
