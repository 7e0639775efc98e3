"""The version of the tool: pyproject.toml, files of results and figures read it here."""

VERSION = "0.2.0"
