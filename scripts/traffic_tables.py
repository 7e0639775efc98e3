"""Makes the shipped traffic tables from copies of the traces: `python -m scripts.traffic_tables CONV.csv CODE.csv`.

The files are those of the Azure LLM inference trace 2023 (github.com/Azure/AzurePublicDataset): conversation, code.
Only derived numbers are written, to dse/data.
"""

import sys
from pathlib import Path

from dse import data
from dse.core import files
from dse.serving import trace_files, trace_tables

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


def write(name: str, path: str, folder: Path) -> Path:
    """The tables of a trace file as `folder`/NAME.traffic.toml. Raises as `trace_files.read`, and OutputError."""
    tables = trace_tables.make(name, trace_files.read(path), title=TRACES[name], **ABOUT)
    out = folder / f"{name}.traffic.toml"
    files.write(out, trace_tables.to_toml(tables).encode())
    return out


if __name__ == "__main__":
    if len(sys.argv) != 1 + len(TRACES):
        sys.exit("usage: python -m scripts.traffic_tables CONVERSATION.csv CODE.csv")
    for shipped_name, given in zip(TRACES, sys.argv[1:], strict=True):
        print(write(shipped_name, given, Path(data.__file__).parent))
