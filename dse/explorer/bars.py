"""The two small bars of the what-if page: what fills the memory, what fills a decode step."""

from typing import Any

import plotly.graph_objects as go

_MEMORY = {
    "weight_bytes": "weights",
    "kv_bytes": "KV cache",
    "activation_bytes": "activations",
    "workspace_bytes": "workspace",
}
_STEP = {
    "linear_s": "linear layers",
    "attention_s": "attention",
    "quantize_s": "quantize",
    "dequantize_s": "dequantize",
}
#: Okabe and Ito's colours, told apart by all eyes
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")


def memory(result: dict[str, Any]) -> go.Figure:
    """Bytes that the whole batch takes at its final length, with the device's memory as a line."""
    figure = _stacked("Memory of the whole batch", _MEMORY, result, "B")
    figure.add_scatter(
        x=[result["capacity_bytes"]] * 2,
        y=[-0.5, 0.5],
        name="device memory",
        mode="lines",
        line={"color": "#888888", "dash": "dash"},
        hovertemplate="device memory: %{x:.4s}B<extra></extra>",
    )
    return figure


def step_time(result: dict[str, Any]) -> go.Figure:
    """Mean time of a decode step, by part."""
    return _stacked("Time of a decode step", _STEP, result, "s")


def _stacked(title: str, parts: dict[str, str], result: dict[str, Any], unit: str) -> go.Figure:
    figure = go.Figure()
    for (name, label), colour in zip(parts.items(), _COLOURS, strict=True):
        figure.add_bar(
            x=[result[name]],
            y=[0],
            name=label,
            orientation="h",
            marker_color=colour,
            hovertemplate=f"{label}: %{{x:.4s}}{unit}<extra></extra>",
        )
    figure.update_layout(
        barmode="stack",
        title=title,
        height=230,
        margin={"l": 10, "r": 20, "t": 60, "b": 80},
        legend={"orientation": "h", "traceorder": "normal", "y": -0.45, "x": 0},
    )
    figure.update_xaxes(tickformat="~s", ticksuffix=unit, rangemode="tozero", nticks=6)
    figure.update_yaxes(visible=False, range=[-0.5, 0.5])
    return figure
