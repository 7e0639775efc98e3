"""The command `dse ring`: one long context over several devices."""

import json
from typing import Any

import click

from dse.cli.options import (
    WHOLE,
    lm_option,
    memory_options,
    model_options,
    quantizer_option,
    refused_deployment,
    work_option,
)


@click.command(short_help="A long context over a ring of devices.")
@click.option("--device", required=True, metavar="NAME|FILE", help="Device name or .toml file; all are equal.")
@lm_option(required=True)
@quantizer_option()
@click.option("--devices", "n_ring", type=WHOLE, default=8, show_default=True, help="Devices in the ring.")
@work_option("batch")
@work_option("input_tokens", default=131072)
@work_option("output_tokens")
@work_option("weights_bits")
@click.option(
    "--link", metavar="'300 GB/s'", help="Bandwidth to the next device, one direction; default: the device's."
)
@memory_options
@refused_deployment
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print every result as JSON, in SI base units.")
def ring(device: str, model: str, quantizer: str, n_ring: int, link: str | None, as_json: bool, **work: Any) -> None:
    """Ring attention: longest context, prompt and decode step with a context in blocks on equal devices.

    Every device holds all weights, so a ring takes none of --tp, --pp, --ep, --dp-attention and --dcp; blocks are
    contiguous, so under a causal mask the last device has most to do. The decode step is that of the last token,
    packing at its mean over a group.
    """
    from dse import quantizers
    from dse.model import kv_layout as plan
    from dse.model import ring as model_of_ring
    from dse.report import present
    from dse.specs import catalog
    from dse.specs.quantity import named_quantity
    from dse.specs.workload import Workload

    spec, side = catalog.device(device), quantizers.parse(quantizer)
    kv = plan.build(catalog.model(model), side, side)
    bandwidth = named_quantity("link", link, "B/s", 1e6, 1e15) if link else None
    asked = Workload(**work)
    asked.refuse_idle()
    result = model_of_ring.evaluate(spec, kv, asked, n_ring, bandwidth)
    click.echo(json.dumps(result, indent=2, allow_nan=False) if as_json else present.ring_text(result, kv.model))
