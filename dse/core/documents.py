"""Documents for other programs: JSON as its standard has it, without NaN and Infinity."""

import json
import math
from typing import Any

#: key of the numbers that JSON cannot say, beside those that stand for them
NOT_FINITE = "not_finite"


def json_text(document: Any, indent: int | None = None) -> str:
    """Write a document as JSON; a number that is not finite becomes null.

    The object that it stands in says which it was: `{"ratio": null, "not_finite": {"ratio": "inf"}}`.
    """
    try:
        return json.dumps(document, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document, "", {}), indent=indent, allow_nan=False)


def _finite(item: Any, place: str, lost: dict[str, str]) -> Any:
    """The item with None for numbers that are not finite, whose places come into `lost`."""
    if isinstance(item, dict):
        nonfinite: dict[str, str] = {}
        finite = {key: _finite(value, str(key), nonfinite) for key, value in item.items()}
        return finite | ({NOT_FINITE: nonfinite} if nonfinite else {})
    if isinstance(item, list | tuple):
        return [_finite(value, f"{place}[{i}]", lost) for i, value in enumerate(item)]
    if isinstance(item, float) and not math.isfinite(item):
        lost[place] = str(float(item))
        return None
    return item
