"""Start the explorer with the settings of `.streamlit/config.toml`, wherever it is started."""

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from dse.core.errors import InputError, show

#: option -> value; the same as the repository's .streamlit/config.toml, which is not found from elsewhere
SETTINGS: dict[str, str | int | bool | list[str]] = {
    "server.address": "127.0.0.1",
    "server.allowedHosts": ["localhost", "127.0.0.1", "::1"],
    "server.enableCORS": True,
    "server.enableXsrfProtection": True,
    "server.enableStaticServing": False,
    "server.maxUploadSize": 64,
    "server.disconnectedSessionTTL": 30,
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": False,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "viewer",
    "browser.gatherUsageStats": False,
    "theme.metricValueFontSize": "1.3rem",
    "theme.light.primaryColor": "#0072B2",
    "theme.light.linkColor": "#0072B2",
    "theme.dark.primaryColor": "#56B4E9",
    "theme.dark.linkColor": "#56B4E9",
}
#: names of this machine, and addresses of a server that listens on all of its interfaces
LOOPBACK, ANY = ("localhost", "127.0.0.1", "::1"), ("0.0.0.0", "::")
#: a server for `streamlit run`; not beside `pages`, whose files Streamlit would run as scripts
SCRIPT = Path(__file__).parent / "script" / "start.py"
#: until the browser has opened the first page, whose server should not be busy with other pages
_FIRST_PAGE_S = 5
#: loggers of Streamlit, and what each says of work that no browser has asked for
_UNASKED = {
    "streamlit.runtime.scriptrunner_utils.script_run_context": "missing ScriptRunContext",
    "streamlit.runtime.state.session_state_proxy": "Session state does not function",
    "streamlit.runtime.caching.cache_data_api": "No runtime found",
}
#: after a signal to end; less than who sends it waits
END_S = 1.0


def flags() -> list[str]:
    """`SETTINGS` as options of `streamlit run`; a list is its option repeated."""
    options = []
    for name, value in SETTINGS.items():
        for item in value if isinstance(value, list) else [value]:
            options += [f"--{name}", str(item).lower() if isinstance(item, bool) else str(item)]
    return options


def _option(args: list[str], name: str) -> str | None:
    """Value of `--name VALUE` or `--name=VALUE` among the options, the last one given."""
    value = None
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        if arg == f"--{name}":
            value = following
        elif arg.startswith(f"--{name}="):
            value = arg.partition("=")[2]
    return value


def address_of(args: list[str]) -> str:
    """Address that the server listens on."""
    return _option(args, "server.address") or str(SETTINGS["server.address"])


def flags_for(args: list[str]) -> list[str]:
    """Options that follow from the user's: the address listened on is a known host, and nobody is asked for another.

    Streamlit would ask the internet for the address of a machine that listens on all of its interfaces.
    """
    address = address_of(args)
    if address not in ANY:
        return ["--server.allowedHosts", address]
    return [] if _option(args, "browser.serverAddress") else ["--browser.serverAddress", "localhost"]


def check_options(args: list[str]) -> None:
    """Raises InputError for a port that cannot be used; warns where others could reach the page."""
    address = address_of(args)
    port = _option(args, "server.port")
    if port is not None:
        if not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or not 1 <= int(port) <= 65535:
            raise InputError(f"server.port = {show(port)}: must be a port from 1 to 65,535")
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, int(port)))
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise InputError(f"server.port = {port}: {address} cannot be used: {reason}: give another") from error
    if address not in LOOPBACK:
        print(f"warning: whoever reaches {address} can use the explorer", file=sys.stderr)


@contextlib.contextmanager
def unasked() -> Iterator[None]:
    """Work that this thread does before a browser asks: that none has is no news; other warnings, and threads, are."""
    thread = threading.get_ident()

    def is_news(record: logging.LogRecord) -> bool:
        return record.thread != thread or _UNASKED[record.name] not in record.getMessage()

    loggers = [logging.getLogger(name) for name in _UNASKED]
    for logger in loggers:
        logger.addFilter(is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_news)


@unasked()
def _warm() -> None:
    """Answer the designs of a first visit, while the server starts and the browser opens; then import all pages."""
    from dse.explorer import app, bench, common_fields, question, sidebar

    with contextlib.suppress(Exception):  # whatever it is, the page will say it where it can be seen
        asked = {field.key: field.default for field in common_fields.SCENARIO} | question.OPENING
        bench.evaluate(asked, sidebar.opening())
        time.sleep(_FIRST_PAGE_S)
        for page in app.PAGES:
            import_module(page.module)


def _end_in_time() -> None:
    """After SIGTERM or Ctrl-C, end the process at the latest after END_S, whatever still runs or is waited for.

    Streamlit waits for its threads and for browsers to say goodbye; nothing that it or we would still write is lost.
    Python hands every signal's number to this socket at once, even where its main thread is busy.
    """
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)

    def end(number: int, _: object) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):  # raised again by the server when it has shut down
        signal.signal(number, end)

    def wait() -> None:
        while told.fileno() >= 0:
            if set(heard.recv(64)) & {signal.SIGTERM, signal.SIGINT}:
                time.sleep(END_S)
                os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def serve(args: list[str]) -> None:
    """Serve the explorer until interrupted; `args` are further `streamlit run` options, and win over ours."""
    check_options(args)
    from streamlit.web import cli

    # imported here, in one thread: a library half imported by another would look broken to Streamlit
    with unasked():
        from dse.explorer import figure, request  # noqa: F401

    threading.Thread(target=_warm, daemon=True).start()
    _end_in_time()

    cli.main(args=["run", str(SCRIPT), *flags(), *flags_for(args), *args], prog_name="dse app", standalone_mode=False)
