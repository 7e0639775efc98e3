"""How the explorer is started, and whom it answers."""

import asyncio
import logging
import threading
import tomllib
from pathlib import Path

import pytest

from dse.explorer import launch, serving

ROOT = Path(__file__).parents[2]


def test_launcher_and_config_file_say_the_same():
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))

    def flat(table, prefix=""):
        for key, value in table.items():
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    assert dict(flat(config)) == launch.SETTINGS


def test_every_setting_is_known_to_streamlit():
    from streamlit import config

    known = config.get_config_options()
    assert not [name for name in launch.SETTINGS if name not in known]
    assert launch.SETTINGS["server.address"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "is_open"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("10.0.0.7", True)],
)
def test_an_address_that_others_reach_is_warned_about(address, is_open, capsys):
    launch.check_options(["--server.address", address])
    assert ("can use the explorer" in capsys.readouterr().err) is is_open


def test_an_address_given_is_answered_to_and_one_for_all_interfaces_is_not_looked_up():
    assert launch.flags_for(["--server.address", "10.0.0.7"]) == ["--server.allowedHosts", "10.0.0.7"]
    assert launch.flags_for(["--server.address=0.0.0.0"]) == ["--browser.serverAddress", "localhost"]
    assert launch.flags_for(["--server.address", "::", "--browser.serverAddress", "a.example"]) == []


#: Host and Origin of a request, and whether the explorer answers when it listens on 10.0.0.7
REQUESTS = [
    ("localhost:8501", None, True),
    ("LOCALHOST.", None, True),
    ("127.0.0.1:8501", "http://127.0.0.1:8501", True),
    ("[::1]:8501", "http://localhost:8501", True),
    ("10.0.0.7", "http://10.0.0.7", True),
    ("docs.example.org", "https://docs.example.org", True),
    ("localhost", "https://allowed.example", True),
    ("10.0.0.8", None, False),
    ("", None, False),
    ("localhost:port", None, False),
    ("localhost@evil.example", None, False),
    ("localhost/evil", None, False),
    ("0.0.0.0", None, False),
    ("evil.example", "http://evil.example", False),
    ("example.org", None, False),
    ("localhost", "http://evil.example", False),
    ("localhost", "http://localhost.evil.example", False),
    ("localhost", "http://localhost@evil.example", False),
    ("localhost", "file://localhost", False),
    ("localhost", "http://[", False),
    ("localhost", "null", False),
    ("localhost", "", False),
]


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_known_hosts_and_origins_reach_streamlit(kind, monkeypatch):
    options = {
        "server.address": "10.0.0.7",
        "server.allowedHosts": ["*.example.org"],
        "server.corsAllowedOrigins": ["https://allowed.example"],
        "server.enableCORS": True,
    }
    monkeypatch.setattr(serving.config, "get_option", options.get)
    reached, sent = [], []

    async def streamlit(scope, receive, send):
        reached.append(dict(scope["headers"]))

    async def send(message):
        sent.append(message.get("status", message.get("code")))

    def answered(host, origin):
        reached.clear()
        sent.clear()
        headers = [(b"host", host.encode())] + ([] if origin is None else [(b"origin", origin.encode())])
        asyncio.run(serving.Guard(streamlit)({"type": kind, "headers": headers}, None, send))
        assert sent[:1] == ([] if reached else [403 if kind == "http" else 1008])
        assert kind == "http" or not any(b"origin" in each for each in reached)  # Streamlit would look its host up
        return bool(reached)

    assert [(host, origin, answered(host, origin)) for host, origin, _ in REQUESTS] == REQUESTS


def test_a_server_for_all_interfaces_is_not_a_host_and_two_hosts_are_none(monkeypatch):
    options = {"server.address": "0.0.0.0", "server.allowedHosts": [], "server.enableCORS": True}
    monkeypatch.setattr(serving.config, "get_option", options.get)
    assert "0.0.0.0" not in serving.known_hosts()
    sent = []

    async def send(message):
        sent.append(message.get("status"))

    headers = [(b"host", b"localhost"), (b"host", b"localhost")]
    asyncio.run(serving.Guard(None)({"type": "http", "headers": headers}, None, send))
    assert sent[0] == 403


def test_app_py_is_the_same_script():
    def code(path):
        return path.read_text(encoding="utf-8").split('"""')[2]

    assert code(ROOT / "app.py") == code(launch.SCRIPT)


def test_no_folder_of_pages_stands_beside_a_script():
    """Streamlit would run its files as scripts: the first page that a new server is asked for would be blank."""
    for script in (launch.SCRIPT, serving.SCRIPT, ROOT / "app.py"):
        assert script.is_file()
        assert not (script.parent / "pages").exists()


def test_only_what_streamlit_says_of_work_that_no_browser_asked_for_is_unheard(monkeypatch):
    context = logging.getLogger("streamlit.runtime.scriptrunner_utils.script_run_context")
    heard = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: heard.append(record.getMessage().partition(":")[0]))
    monkeypatch.setattr(context, "handlers", [handler])
    monkeypatch.setattr(context, "level", logging.WARNING)  # whatever tests before left it at
    monkeypatch.setattr(context, "disabled", False)
    monkeypatch.setattr(context, "_cache", {})
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)
    missing = "Thread '%s': missing ScriptRunContext! This warning can be ignored when running in bare mode."
    with launch.unasked():
        context.warning(missing, "warm")
        logging.getLogger("streamlit.runtime.caching.cache_data_api").warning("No runtime found, using Memory")
        context.warning("a browser is gone")
        other = threading.Thread(target=context.warning, args=(missing, "another"))
        other.start()
        other.join()
    context.warning(missing, "after")
    assert heard == ["a browser is gone", "Thread 'another'", "Thread 'after'"]


def test_warming_up_says_nothing(caplog, monkeypatch):
    """With Streamlit as it is: its loggers and its words are those that are known here."""
    monkeypatch.setattr(launch, "_FIRST_PAGE_S", 0)
    launch._warm()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("streamlit")] == []
