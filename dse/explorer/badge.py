"""Certainty of a design's times in a few words and a color, and the row of the page Trust that says from what."""

from typing import Any, NamedTuple

import streamlit as st

from dse.explorer import state
from dse.explorer.bench import BenchRow
from dse.model import uncertainty
from dse.specs.engines import ENGINES
from dse.validate import nearest

#: colors, as Streamlit calls them: near to what was measured; far from it; peak rates; no times
NEAR, FAR, PEAK, NONE = "green", "orange", "gray", "red"
#: assumption -> words, the first that a design rests on: what of it nobody timed
_NOT_TIMED = {
    "reached_rates": "no kernels timed",
    "stacks_of": "another device's kernels",
    "no_kernel": "kernel unknown",
    "implementation": "kernel not timed",
    "nearest_kernels": "nearest kernels",
    "sparse_prompts": "prompts not timed",
    "nearest_format": "weights not timed",
    "eight_bit_kernels": "weights not timed",
    "nearest_release": "release not timed",
}


class Badge(NamedTuple):
    """Words and color of a badge; `by` is what Trust groups servers by in the row that the interval is from, "" for
    none."""

    text: str
    color: str
    by: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The fields of Trust, as its address has them, that show this row."""
        return {"trust_by": self.by} if self.by else {}


def show(badge: Badge) -> None:
    """Draw a badge, and a button that opens its row on Trust."""
    color: Any = badge.color
    st.badge(badge.text, color=color)
    if badge.by and st.button("From what?", key="badge", type="tertiary", help="What was measured near this design."):
        state.put(badge.query)
        state.go("trust")


def badge_of(row: BenchRow) -> Badge:
    """Certainty of a design's throughput: half the width of its 80 % interval, and what was measured of it.

    Green where its kernels or servers were timed; amber where something stands in for what nobody timed
    (`uncertainty.UNMEASURED`), numbers of the device are changed, or the model is far in size from every measured one
    (`nearest.is_far`).
    """
    if row.answer is None:
        return Badge("cannot be computed", NONE)
    result = row.result
    if not result["feasible"]:
        return Badge("does not fit", NONE)
    if row.refusals:
        name = str(result["stack"] or "its software").partition("@")[0]
        return Badge(f"not run by {ENGINES.get(name, name)}", NONE)
    if result["model_kind"] == "ideal":
        return Badge("peak rates", PEAK)
    low, high = uncertainty.ends(result)
    rate = result["throughput_tokens_per_s"]
    within = max(1 - low / rate, high / rate - 1) if rate else 0.0
    by = "model" if nearest.is_of_model(result["model"], result["stack"]) else "kind"
    far = _far(row)
    timed = "servers timed" if by == "model" else "kernels timed"
    return Badge(f"±{100 * within:.0f} %, {far or timed}", FAR if far else NEAR, by)


def _far(row: BenchRow) -> str:
    """Why a design is far from what was measured, in words; "" for one that is near."""
    if row.request.device_text.partition(":")[2]:
        return "what-if"
    assumed = row.result["assumptions"]
    if words := next((words for name, words in _NOT_TIMED.items() if name in assumed), ""):
        return words
    model = row.request.model_spec()
    if not nearest.is_far(model):
        return ""
    return f"model {'larger' if nearest.nearest_model(model)[1] > 1 else 'smaller'} than measured"
