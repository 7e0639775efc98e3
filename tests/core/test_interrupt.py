"""Ctrl-C at start-up and pressed again and again: one line, exit status 130, no traceback."""

import signal
import subprocess
import sys

import pytest

from dse.cli import main as cli
from dse.core import interrupt

START = "import os, signal\nfrom dse.core import interrupt\n"
PRESS = "os.kill(os.getpid(), signal.SIGINT)\n"


def ended(script, handler=signal.SIG_DFL):
    """Exit status and standard error of a script in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", START + script],
        capture_output=True,
        text=True,
        # a shell's background jobs ignore SIGINT, and so would what they start
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )
    return done.returncode, done.stderr


def test_while_the_command_is_still_loading():
    assert ended(f"interrupt.install()\n{PRESS}print('never')") == (130, "stopped\n")


@pytest.mark.parametrize("n_presses", [1, 2, 3])
def test_while_a_stopped_command_ends(n_presses):
    """The first press lets it say what it keeps; the next ones end it, with the same words."""
    script = (
        f"interrupt.install(); interrupt.begin(); interrupt.words('stopped: half')\n"
        f"try:\n    {PRESS}"
        f"except KeyboardInterrupt:\n    for i in range({n_presses - 1}): {PRESS}    interrupt.say()\n    os._exit(130)"
    )
    assert ended(script) == (130, "stopped: half\n")


def test_after_the_line_nothing_more_is_said():
    script = (
        f"interrupt.install(); interrupt.begin()\ntry:\n    {PRESS}"
        f"except KeyboardInterrupt:\n    interrupt.say()\n{PRESS}{PRESS}os._exit(130)"
    )
    assert ended(script) == (130, "stopped\n")


@pytest.mark.parametrize(("raised", "said"), [(PRESS, ""), ("raise ValueError('odd')", "ValueError: odd")])
def test_in_a_finalizer_a_press_is_found_later_and_another_error_is_told(raised, said):
    script = (
        "interrupt.install(); interrupt.begin()\n"
        f"class Held:\n    def __del__(self):\n        {raised.strip()}\n"
        "held = Held(); del held\n"
        "try:\n    interrupt.look()\n    os._exit(7)\n"
        "except KeyboardInterrupt:\n    os._exit(130)"
    )
    status, err = ended(script)
    assert status == (7 if said else 130)
    assert said in err
    assert bool(err) == bool(said)


def test_a_command_that_is_stopped(monkeypatch, capsys):
    def stopped(**words):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli.commands["list"], "callback", stopped)
    with pytest.raises(SystemExit) as stop:
        cli.main(["list", "models"])
    assert (stop.value.code, capsys.readouterr().err) == (130, "stopped\n")


def test_ignored_stays_ignored():
    script = f"interrupt.install()\n{PRESS}{PRESS}os._exit(7)"
    assert ended(script, signal.SIG_IGN) == (7, "")


def test_an_import_that_turns_it_into_another_error(monkeypatch, capsys):
    def broken(**words):
        interrupt._pressed = True  # as a press does
        raise ImportError("numpy could not be loaded")

    monkeypatch.setattr(cli.cli, "main", broken)
    with pytest.raises(SystemExit) as stop:
        cli.main(["list", "models"])
    assert (stop.value.code, capsys.readouterr().err) == (130, "stopped\n")


def test_the_command_listens_before_it_loads_anything():
    """Both ways to start it: `python -m dse`, and the script that the installation writes."""
    for start in ("runpy.run_module('dse', run_name='__main__')", "__import__('dse.__main__').__main__.main()"):
        script = f"""
import builtins, runpy, sys
real = builtins.__import__
def load(name, *args, **words):
    if name == "dse.cli.main":
        {PRESS}
    return real(name, *args, **words)
builtins.__import__ = load
sys.argv = ["dse", "--version"]
{start}
"""
        assert ended(script) == (130, "stopped\n")
