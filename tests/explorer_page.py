"""The explorer without a browser, for its tests: the page run with a query, and what it shows."""

import json

from streamlit.testing.v1 import AppTest

TIMEOUT_S = 60


#: the explorer, opened at Compare
WHAT_IF = "from dse.explorer.app import main; main('compare')"


def page(**query):
    """What if, run once with that query in its URL."""
    app = AppTest.from_string(WHAT_IF, default_timeout=TIMEOUT_S)
    app.session_state["memory_bars beside"] = True  # what stands beside a figure is drawn when it is open
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def command_of(app):
    return next(code.value for code in app.code if code.value.startswith("dse point"))


def metrics(app):
    return {metric.label: metric.value for metric in app.metric}


def shown_text(app):
    return "\n".join([*(text.value for text in app.text), *(code.value for code in app.code)])


def address_of(app):
    return {key: "".join(text) for key, text in app.query_params.items()}


def measured_file():
    """A measurement file whose tensors take 4 bits and whose attention output is off by 3/4."""
    tensors = [
        {
            "name": f"layer0.{which}", "layer": 0, "which": which, "n_heads": 1, "head_dim": 2, "n_tokens": 4,
            "n_elements": 8, "stored_bytes": 4, "ledger": {"payload": 32}, "counts": {}, "squared_error": 1.0,
            "squared_signal": 100.0, "max_abs_error": 1.0,
            "output": {"squared": 16.0, "squared_error": 9.0, "squared_error_both": 9.0},
        } for which in ("key", "value")
    ]  # fmt: skip
    data = {"name": "own.npz", "sha256": "0" * 64, "synthetic": False}
    return json.dumps(
        {"format": 1, "data": data, "methods": [{"quantizer": "oaken", "tensors": tensors}]}, indent=1
    ).encode()
