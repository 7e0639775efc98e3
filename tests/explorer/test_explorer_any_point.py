"""Designs drawn from all devices, models and splits, on the pages that take one: shown, or a line that says why not."""

import random

import pytest
from streamlit.testing.v1 import AppTest

from dse.specs import catalog
from explorer_page import TIMEOUT_S

DRAWN = random.Random(20261124)
DEVICES, MODELS = list(catalog.device_files()), list(catalog.model_files())
DESIGNS = [
    {
        "device": DRAWN.choice(DEVICES),
        "model": DRAWN.choice(MODELS),
        "tp": str(DRAWN.choice([1, 2, 8])),
        "quantizer": DRAWN.choice(["fp16", "fp8", "nqkv", "oaken", "kivi", "nvfp4"]),
        "batch": "4",
    }
    for _ in range(6)
]


@pytest.mark.parametrize("page", ["answer", "size", "why"])
@pytest.mark.slow
def test_a_page_shows_any_design_or_says_why_not(page):
    for design in DESIGNS:
        app = AppTest.from_string(f"from dse.explorer.app import main; main({page!r})", default_timeout=TIMEOUT_S)
        for key, value in design.items():
            app.query_params[key] = value
        app.run()
        assert not app.exception, design
        assert not app.warning, design
        assert app.get("arrow_data_frame") or app.markdown, design
