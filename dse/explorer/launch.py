"""Start the explorer with the settings of `.streamlit/config.toml`, wherever it is started."""

from pathlib import Path

#: option -> value; the same as the repository's .streamlit/config.toml, which is not found from elsewhere
SETTINGS: dict[str, str | int | bool | list[str]] = {
    "server.address": "127.0.0.1",
    "server.allowedHosts": ["localhost", "127.0.0.1"],
    "server.enableCORS": True,
    "server.enableXsrfProtection": True,
    "server.enableStaticServing": False,
    "server.maxUploadSize": 64,
    "server.disconnectedSessionTTL": 30,
    "server.showEmailPrompt": False,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "viewer",
    "browser.gatherUsageStats": False,
    "theme.metricValueFontSize": "1.3rem",
    "theme.light.linkColor": "#0072B2",
    "theme.dark.linkColor": "#56B4E9",
}
SCRIPT = Path(__file__).with_name("start.py")


def flags() -> list[str]:
    """`SETTINGS` as options of `streamlit run`; a list is its option repeated."""
    found = []
    for name, value in SETTINGS.items():
        for item in value if isinstance(value, list) else [value]:
            found += [f"--{name}", str(item).lower() if isinstance(item, bool) else str(item)]
    return found


def run(args: list[str]) -> None:
    """Serve the explorer until interrupted; `args` are further `streamlit run` options, and win over ours."""
    from streamlit.web import cli

    cli.main(args=["run", str(SCRIPT), *flags(), *args], prog_name="dse app --", standalone_mode=False)
