"""The command `dse traffic`."""

import json
from typing import Any

import click

from dse.cli.options import (
    WHOLE,
    deployment_options,
    lm_option,
    memory_options,
    model_options,
    parse_whole,
    progress_bar,
    quantizer_options,
    split_list,
    work_option,
)
from dse.cli.unused import refuse
from dse.core.errors import InputError


@click.command(short_help="What a request trace is made of, and what of it fits.")
@click.argument("trace", metavar="azure-conv|azure-code|FILE")
@click.option("--device", metavar="NAME|FILE", help="Device name or .toml file; with --model: what fits.")
@lm_option(required=False)
@quantizer_options
@work_option("weights_bits")
@work_option("weights")
@work_option("page_tokens")
@click.option(
    "--max-tokens",
    type=WHOLE,
    metavar="N",
    help="Length reserved for each request; default: the model's longest, at least the trace's.",
)
@work_option("dequant_path")
@click.option("--batch", "batches", metavar="16,32", help="Batch sizes; default: 16,32,64,128.")
@memory_options
@deployment_options
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print every number as JSON, in SI base units.")
def traffic(
    trace: str,
    device: str | None,
    model: str | None,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    weights_bits: int,
    page_tokens: int,
    max_tokens: int | None,
    dequant_path: str | None,
    batches: str | None,
    model_kind: str,
    stack: str | None,
    as_json: bool,
    **deployment: Any,
) -> None:
    """What a trace of requests is made of: rate, lengths, moments, what batches of unequal requests cost.

    FILE is a CSV file of Azure's schema (TIMESTAMP, ContextTokens, GeneratedTokens) or BurstGPT's (Timestamp, Request
    tokens, Response tokens; rows without tokens failed and are left out), of any size. With --device and --model: how
    many of its requests fit at once with the longest length reserved for each, its own final length, or paged memory,
    and the requests and tokens per second of so many in steady state.
    """
    from dse.report import present_traffic

    sizes = [parse_whole("batch", text) for text in split_list("batch", batches) or []] or present_traffic.BATCHES
    if (device is None) != (model is None):
        missing = "device" if device is None else "model"
        raise InputError(f"{missing} is missing: give both --device and --model, or neither")
    if device is None:
        why = "without a device"
        of_plan = ("quantizer", "key_quantizer", "value_quantizer", "weights_bits", "page_tokens", "dequant_path")
        refuse(dict.fromkeys((*of_plan, *deployment, "model_kind", "stack"), why))
    if device is None and max_tokens is not None:
        raise InputError(f"max-tokens = {max_tokens}: says what a device reserves: give --device and --model too")
    spec = plan = work = None
    if device is not None and model is not None:
        from dse import quantizers
        from dse.model.kv_layout import build
        from dse.specs import catalog
        from dse.specs.workload import Workload

        spec = catalog.device(device)
        sides = (quantizers.parse(name or quantizer) for name in (key_quantizer, value_quantizer))
        plan = build(catalog.model(model), *sides)
        work = Workload(
            page_tokens=page_tokens,
            weights_bits=weights_bits,
            dequant_path=dequant_path,  # type: ignore[arg-type]
            model_kind=model_kind,  # type: ignore[arg-type]
            stack=stack,
            admission="paged",
            **deployment,
        )
        work.refuse_idle()
    one = present_traffic.find(trace, progress_bar)
    found = present_traffic.about(one, sizes)
    fit = present_traffic.fitting(one, spec, plan, work, max_tokens) if spec and plan and work else None
    if as_json:
        click.echo(json.dumps({**found, **({"fit": fit} if fit else {})}, indent=2, allow_nan=False))
    else:
        click.echo(present_traffic.text(found, fit))
