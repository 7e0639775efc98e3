"""Ctrl-C: one line that says so and exit status 130, however early and however often it is pressed."""

import os
import signal
import sys

STATUS = 130
_WORDS = "stopped"

#: what is still to be said; whether the next press ends the process at once
_words, _is_last = _WORDS, True
#: Ctrl-C was pressed since a command began
_pressed = False


def install() -> None:
    """From here on a press ends the process at once; after `begin` only the second one does.

    Where the shell had it ignored, as of jobs in the background, it stays so. Reads and writes of files need no more:
    what is written appears whole or not at all.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _press)
        sys.unraisablehook = _ignored


def begin() -> None:
    """A command begins: the next press raises KeyboardInterrupt, so that it can say what it keeps."""
    global _words, _is_last, _pressed
    _words, _is_last, _pressed = _WORDS, False, False


def at_once() -> None:
    """The command waits for others and keeps nothing: the next press ends the process."""
    global _is_last
    _is_last = True


def words(line: str) -> None:
    """Set the line that is printed when the user stops the command."""
    global _words
    _words = line


def was_pressed() -> bool:
    """Whether Ctrl-C was pressed since `begin`: imports can turn its KeyboardInterrupt into another error."""
    return _pressed


def look() -> None:
    """Raise KeyboardInterrupt where Ctrl-C was pressed: long work goes on where it was raised in a finalizer or a
    callback of compiled code, whose errors Python ignores."""
    if _pressed:
        raise KeyboardInterrupt


def say() -> None:
    """Say that the command was stopped, once; it ends now, and further presses change nothing."""
    global _words, _pressed
    _pressed = False
    if signal.getsignal(signal.SIGINT) is _press:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # else the interpreter ends by the signal, not with the status
    line, _words = _words, ""
    if line:
        print(line, file=sys.stderr)


def _ignored(unraisable: "sys.UnraisableHookArgs") -> None:
    """Errors that Python ignores are told as ever, but for a press in a callback of compiled code: `look` finds it."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)


def _press(number: int, frame: object) -> None:
    global _is_last, _pressed
    if not _is_last:
        _is_last = _pressed = True
        raise KeyboardInterrupt
    if _words:
        os.write(2, f"{_words}\n".encode())
    os._exit(STATUS)
