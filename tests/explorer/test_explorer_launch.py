"""How the explorer is started."""

import tomllib
from pathlib import Path

import pytest

from dse.explorer import launch

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
    launch.check(["--server.address", address])
    assert ("can use the explorer" in capsys.readouterr().err) is is_open


def test_app_py_is_the_same_script():
    def code(path):
        return path.read_text(encoding="utf-8").split('"""')[2]

    assert code(ROOT / "app.py") == code(launch.SCRIPT)


def test_no_folder_of_pages_stands_beside_a_script():
    """Streamlit would run its files as scripts: the first page that a new server is asked for would be blank."""
    for script in (launch.SCRIPT, ROOT / "app.py"):
        assert script.is_file()
        assert not (script.parent / "pages").exists()
