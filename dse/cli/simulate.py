"""The command `dse simulate`."""

import json
from typing import Any

import click

from dse.cli.options import (
    WHOLE,
    bits_options,
    command_line,
    deployment_options,
    lm_option,
    memory_options,
    model_options,
    progress_bar,
    quantizer_options,
    work_option,
)
from dse.cli.unused import refuse


@click.command(short_help="Serve a trace or a rate of requests, step by step.")
@click.option("--device", required=True, metavar="NAME|FILE", help="Device name or .toml file.")
@lm_option(required=True)
@quantizer_options
@click.option("--trace", metavar="azure-conv|azure-code|FILE", help="Whose lengths (and arrivals); default: all alike.")
@click.option(
    "--rate",
    metavar="R|70%|trace|full",
    help="Requests per second (Poisson), a share of the rate that holds (70%), the trace's own arrivals (a "
    "shipped trace's: gaps drawn from its quantiles), or all at once; default: as the trace, all at once "
    "without one.",
)
@click.option("--requests", "n_requests", type=WHOLE, metavar="N", help="How many; default: 10,000, or all of a FILE.")
@work_option("input_tokens", help="Prompt tokens, without --trace.")
@work_option("output_tokens", default=256, help="Generated tokens, without --trace.")
@work_option("batch", default=256, help="Most requests that run at once.")
@click.option(
    "--batching",
    default="continuous",
    show_default=True,
    metavar="static|continuous|chunked",
    help="Until the longest answer ends; replaced at once; with prompts in chunks.",
)
@click.option(
    "--chunk", "chunk_tokens", type=WHOLE, default=512, show_default=True, help="Tokens of a step of chunked batching."
)
@click.option(
    "--prompt-batch",
    "prompt_step_tokens",
    type=WHOLE,
    default=2048,
    show_default=True,
    help="Tokens up to which whole prompts share a step; a longer one has its own.",
)
@work_option(
    "admission", default="paged", help="Memory held from the start, or page by page; static batching reserves."
)
@work_option("page_tokens")
@work_option("weights_bits")
@work_option("weights")
@work_option("activation_bits")
@work_option("dequant_path")
@click.option("--seed", type=WHOLE, default=1, show_default=True, help="Of lengths and arrivals.")
@memory_options
@deployment_options
@model_options
@bits_options
@click.option("--json", "as_json", is_flag=True, help="Print every number as JSON, in SI base units.")
@click.option("--out", metavar="DIR", help="Write tables, JSON and the figures there.")
def simulate(
    device: str,
    model: str,
    quantizer: str,
    key_quantizer: str | None,
    value_quantizer: str | None,
    trace: str | None,
    rate: str | None,
    n_requests: int | None,
    input_tokens: int,
    output_tokens: int,
    batch: int,
    batching: str,
    chunk_tokens: int,
    prompt_step_tokens: int,
    admission: str,
    page_tokens: int,
    weights_bits: int,
    activation_bits: int,
    dequant_path: str | None,
    seed: int,
    model_kind: str,
    stack: str | None,
    bits: str,
    measurements: str | None,
    as_json: bool,
    out: str | None,
    **deployment: Any,
) -> None:
    """Serve requests step by step, seeded: throughput, time to first token, time per output token, queueing, memory.

    A request is admitted in order of arrival where a place and memory for its prompt are free; paged memory that runs
    out sends the youngest back. Beside it stands the steady state in closed form, and the rate that it can hold.

    The first token is known when the prompt is computed. Arrivals that are drawn are scaled to the rate asked for.
    """
    from dse.model import kv_layout as plan
    from dse.report import simulation as report_simulation
    from dse.serving import simulator
    from dse.serving.arrivals import Traffic
    from dse.specs import catalog
    from dse.specs.measurements import bits_from
    from dse.specs.workload import Workload

    work = Workload(
        batch=batch,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        page_tokens=page_tokens,
        admission=admission,  # type: ignore[arg-type]
        dequant_path=dequant_path,  # type: ignore[arg-type]
        model_kind=model_kind,  # type: ignore[arg-type]
        weights_bits=weights_bits,
        activation_bits=activation_bits,
        stack=stack,
        **deployment,
    )
    work.refuse_idle()
    simulator.check(work, 1 if n_requests is None else n_requests, batching, chunk_tokens, prompt_step_tokens)
    unused = {"prompt_step_tokens": "with --batching chunked"}
    if batching != "chunked":
        unused = {"chunk_tokens": "without --batching chunked"}
    if trace is not None:
        unused |= dict.fromkeys(("input_tokens", "output_tokens"), "with --trace, which has its own lengths")
    if batching == "static":
        unused |= {"page_tokens": "with --batching static, which reserves memory"}
        if admission == "paged":
            unused |= {"admission": "with --batching static, which reserves memory"}
    elif admission == "reserve":
        unused |= {"page_tokens": "with --admission reserve"}
    refuse(unused)
    spec, source = catalog.device(device), bits_from(bits, measurements)
    sides = (source.required(name or quantizer) for name in (key_quantizer, value_quantizer))
    kv = plan.build(catalog.model(model), *sides)
    if out is not None:
        from dse.core import files

        files.prepare(out)
    result, run = report_simulation.serve(
        spec,
        kv,
        work,
        Traffic(trace, rate, n_requests, seed),
        batching,  # type: ignore[arg-type]
        chunk_tokens,
        progress_bar,
        prompt_step_tokens,
    )
    written = report_simulation.write(out, result, run, command_line()) if out is not None else []
    if as_json:
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    else:
        click.echo(report_simulation.text(result))
        for path in written:
            click.echo(f"wrote {path}")
