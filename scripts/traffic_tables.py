"""Makes the shipped traffic tables from copies of the traces: `python -m scripts.traffic_tables CONV.csv CODE.csv`.

The files are those of the Azure LLM inference trace 2023 (github.com/Azure/AzurePublicDataset): conversation, code.
Only derived numbers are written, to dse/data.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dse import data
from dse.core import files
from dse.core.errors import InputError
from dse.serving import trace_files, trace_tables
from dse.serving.requests import Floats, Ints, Lengths, Requests

SOURCE = (
    "Azure LLM inference trace 2023, Microsoft (github.com/Azure/AzurePublicDataset); Patel et al., Splitwise: "
    "Efficient generative LLM inference using phase splitting, ISCA 2024, arXiv:2311.18677"
)
ABOUT = {
    "source": SOURCE,
    "licence": "CC BY 4.0 (creativecommons.org/licenses/by/4.0)",
    "attribution": "Microsoft; changed: reduced to moments and quantiles by this project, no request is contained",
}
#: shipped name -> title
TRACES = {
    "azure-conv": "Azure LLM inference trace 2023, conversation",
    "azure-code": "Azure LLM inference trace 2023, code",
}


def make(name: str, requests: Requests, **about: str) -> trace_tables.TraceTables:
    """The tables of requests in memory, at least N_BINS of them. `about`: title, source, licence, attribution."""
    n = len(requests.input_tokens)
    if n < trace_tables.N_BINS:
        raise InputError(f"requests = {n}: must be at least {trace_tables.N_BINS}")
    order = np.argsort(requests.input_tokens, kind="stable")
    joint = [
        _cell_means(part, trace_tables.BIN_LEVELS)
        for part in np.array_split(requests.output_tokens[order], trace_tables.N_BINS)
    ]
    lengths = Lengths.of(requests)
    return trace_tables.TraceTables(
        name=name,
        moments=lengths.moments,
        largest={b: (lengths.largest_output(b), lengths.longest_input(b)) for b in trace_tables.LARGEST_BATCHES},
        longest_tokens=int((requests.input_tokens + requests.output_tokens).max()),
        input_tokens=np.quantile(requests.input_tokens, trace_tables.LEVELS).round(),
        output_tokens=np.quantile(requests.output_tokens, trace_tables.LEVELS).round(),
        gap_s=np.quantile(np.diff(requests.arrival_s), trace_tables.LEVELS),
        joint=np.array(joint).round(1),
        **about,
    )


def _cell_means(values: Ints, shares: Floats) -> Floats:
    """Mean of the sorted values between neighbouring shares; a value that a share cuts counts in part on both sides."""
    total = np.concatenate([[0.0], np.cumsum(np.sort(values))])
    up_to = np.interp(shares * len(values), np.arange(len(total)), total)
    means: Floats = np.diff(up_to) / (np.diff(shares) * len(values))
    return means


def to_toml(tables: trace_tables.TraceTables) -> str:
    """The tables as a file; numbers carry their units in their names. Times have six digits."""
    lines = [
        "# Derived numbers of a request trace: moments and quantiles. Not the trace itself.",
        *(f"{name} = {_quoted(getattr(tables, name))}" for name in ("name", "title", "source", "licence")),
        f"attribution = {_quoted(tables.attribution)}",
        'kind = "derived"',
        "# prompt and answer of the longest request",
        f"longest_tokens = {tables.longest_tokens}",
        "",
        "# means over all requests, exact; the squares and products are token^2",
        "[moments]",
        *(f"{name} = {value!r}" for name, value in asdict(tables.moments).items()),
        "",
        "# at the shares `levels` of the requests; gaps are between one arrival and the next",
        "[quantiles]",
        f"levels = {trace_tables.LEVELS.tolist()}",
        f"input_tokens = {_numbers(tables.input_tokens)}",
        f"output_tokens = {_numbers(tables.output_tokens)}",
        f"gap_s = {_numbers(tables.gap_s)}",
        "",
        "# expected largest answer and longest prompt of so many requests drawn with replacement, exact",
        "[largest]",
        f"batches = {list(tables.largest)}",
        f"output_tokens = [{', '.join(f'{moments[0]:.10g}' for moments in tables.largest.values())}]",
        f"input_tokens = [{', '.join(f'{moments[1]:.10g}' for moments in tables.largest.values())}]",
        "",
        "# mean answers between neighbouring shares `levels` of a bin; bins hold equally many, by rising prompt",
        "[joint]",
        f"levels = {trace_tables.BIN_LEVELS.tolist()}",
        "output_tokens = [",
        *(f"    {_numbers(row)}," for row in tables.joint),
        "]",
        "",
    ]
    return "\n".join(lines)


def _numbers(values: Floats) -> str:
    return "[" + ", ".join(f"{value:.0f}" if value == int(value) else f"{value:.6g}" for value in values) + "]"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write(name: str, path: str, folder: Path) -> Path:
    """The tables of a trace file as `folder`/NAME.traffic.toml. Raises as `trace_files.read`, and OutputError."""
    tables = make(name, trace_files.read(path), title=TRACES[name], **ABOUT)
    out = folder / f"{name}.traffic.toml"
    files.write(out, to_toml(tables).encode())
    return out


if __name__ == "__main__":
    if len(sys.argv) != 1 + len(TRACES):
        sys.exit("usage: python -m scripts.traffic_tables CONVERSATION.csv CODE.csv")
    for shipped_name, given in zip(TRACES, sys.argv[1:], strict=True):
        print(write(shipped_name, given, Path(data.__file__).parent))
