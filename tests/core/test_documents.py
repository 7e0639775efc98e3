"""JSON without NaN and Infinity."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dse.core.documents import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


def test_a_number_that_json_has_not_is_null_and_named_beside():
    rows = [{"ratio": math.inf, "ends": [1.0, -math.inf], "x": 1}, {"ratio": np.float64("nan")}, {"ratio": 2.5}]
    assert json.loads(json_text(rows, 2), parse_constant=refuse) == [
        {"ratio": None, "ends": [1.0, None], "x": 1, "not_finite": {"ratio": "inf", "ends[1]": "-inf"}},
        {"ratio": None, "not_finite": {"ratio": "nan"}},
        {"ratio": 2.5},
    ]


@given(VALUES)
def test_every_document_is_json(document):
    text = json_text(document)
    json.loads(text, parse_constant=refuse)
    try:
        assert text == json.dumps(document, allow_nan=False)  # what JSON can say stays as it is
    except ValueError:
        assert "null" in text
