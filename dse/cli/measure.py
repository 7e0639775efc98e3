"""The commands `dse measure` and `dse synthesize`."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from dse.cli.options import WHOLE, command_line, progress_bar, split_list
from dse.cli.unused import refuse
from dse.core.errors import InputError, clean, show
from dse.measure import MAX_BYTES

#: problems that --check prints
MAX_LINES = 20


@click.command(short_help="Errors and bits of quantizers on a KV dump.")
@click.argument("source", required=False)
@click.option("--perplexity", is_flag=True, help="Perplexity of the language models that ship, without SOURCE.")
@click.option("--models", metavar="A,B", help="With --perplexity: mha, gqa or .safetensors files; default: both.")
@click.option("--methods", metavar="A,B", help="Quantizers with parameters, as for `dse point`.")
@click.option("--out", metavar="DIR", help="Directory of the results; one that was begun the same way is finished.")
@click.option("--check", "only_check", is_flag=True, help="Say what SOURCE holds and lacks, and stop.")
@click.option("--thresholds", metavar="T.toml", help="Oaken's thresholds, from `dse thresholds`.")
@click.option("--contexts", metavar="A,B", help="Context lengths; default: powers of two from 64, and the whole.")
@click.option(
    "--queries",
    type=WHOLE,
    default=16,
    show_default=True,
    help="Queries of each head that attention is measured with; 0: no attention.",
)
@click.option(
    "--query-places",
    default="last",
    show_default=True,
    metavar="last|spread",
    help="Where they stand: at the end, as in generation, or over the context, as in a prompt.",
)
@click.option("--seed", type=WHOLE, default=0, show_default=True, help="Of queries drawn where none were dumped.")
@click.option("--model", default="", help="The model that the dump comes from, for the record.")
@click.option("--rope", metavar="after|before|none", help="Keys and queries after or before RoPE; none: no RoPE.")
@click.option("--rope-theta", metavar="N", help="Base of RoPE, for keys before it.")
@click.option("--heads", type=WHOLE, help="Heads of tensors [tokens, channels].")
@click.option(
    "--nonfinite",
    default="raise",
    show_default=True,
    metavar="raise|replace",
    help="What to do with NaN and infinities: refuse, or take them as 0 and +-65504.",
)
@click.option("--partial", is_flag=True, help="Take a dump that lacks layers, keys or values.")
@click.option("--synthetic", is_flag=True, help="Mark the measurement as one of synthetic data.")
@click.option("--max-bytes", type=WHOLE, default=MAX_BYTES, show_default=True, help="Largest size of one layer.")
@click.option(
    "--static",
    type=click.Choice(["auto", "kaleido", "matplotlib"]),
    default="auto",
    show_default=True,
    help="What draws PNG, SVG and PDF.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def measure(
    ctx: click.Context,
    source: str | None,
    perplexity: bool,
    models: str | None,
    methods: str | None,
    out: str | None,
    only_check: bool,
    static: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure what quantizers do to the keys and values of a KV dump, and to attention over them.

    For each layer, head and context length: signal-to-noise ratio, mean squared and largest error, cosine, error of the
    attention output, attention moved; stored bits of the packed bytes. Writes a table (Parquet), measurement.json for
    `--measurements`, a summary and figures into DIR. Stop it at any time: the same command goes on. Reads a layer at a
    time, so that dumps larger than memory will do. docs/reference/dumps.md says what a dump is.

    lm:mha and lm:gqa are the keys, values and queries of the language models that ship.

    With --perplexity: perplexity and greedy continuations of the small language models that ship, under every method,
    through its streaming cache; docs/explanation/language_model.md says how. With --out it goes on where it was
    stopped.
    """
    if perplexity:
        _perplexity(ctx, source, models, methods, out, as_json)
        return
    if models is not None:
        raise InputError(f"models = {show(models)}: has no effect without --perplexity: leave it out")
    if source is None:
        raise InputError(
            "SOURCE is missing: give a KV dump (docs/reference/dumps.md), or --perplexity for the models that ship"
        )
    from dse.measure import run as measure_run
    from dse.measure import table as measure_table

    if source.startswith("lm:"):
        from dse.measure.lm import kv_dump

        source = str(kv_dump.write(source, Path(ctx.with_resource(tempfile.TemporaryDirectory()))))
    theta = options.pop("rope_theta")
    asked = measure_run.Asked(
        n_heads=options.pop("heads"), n_queries=options.pop("queries"), theta=_number("rope-theta", theta), **options
    )
    if only_check:
        _check(ctx, measure_run.check(source, asked, progress_bar), as_json)
        return
    names = split_list("methods", methods)
    if not names:
        raise InputError("--methods is missing: name quantizers, such as --methods nqkv,kivi:bits=2")
    if out is None:
        raise InputError("--out is missing: see dse measure --help")
    from dse.figures.export import measurement as report_measure
    from dse.figures.export import static as report_static

    report_static.check(static)
    try:
        found = measure_run.run(source, names, out, asked, progress_bar)
    except KeyboardInterrupt:
        click.echo(clean(f"stopped: finished parts are kept in {out}: the same command goes on", 300), err=True)
        ctx.exit(130)
    page = report_measure.write(found, command_line(), static)
    if as_json:
        click.echo(json.dumps(found.summary, allow_nan=False))
        return
    click.echo(measure_table.text(found.summary))
    if found.n_before:
        click.echo(f"{found.n_before:,} parts were there already, checked against their hashes")
    click.echo(f"measured: {page}")
    click.echo(f"for design points and sweeps: --measurements {found.folder / measure_run.MEASUREMENT}")


def _perplexity(
    ctx: click.Context, source: str | None, models: str | None, methods: str | None, out: str | None, as_json: bool
) -> None:
    """Score the language models and print a row a model and method."""
    used = {"perplexity", "models", "methods", "out", "as_json"}
    refuse({param.name or "": "with --perplexity" for param in ctx.command.params if param.name not in used})
    from dse.measure.lm import run
    from dse.report import listing

    try:
        scores = run.run(split_list("models", models) or [], split_list("methods", methods) or [], out, progress_bar)
    except KeyboardInterrupt:
        kept = f": finished rows are kept in {out}: the same command goes on" if out else ": --out DIR keeps rows"
        click.echo(clean(f"stopped{kept}", 300), err=True)
        ctx.exit(130)
    rows = run.rows(scores)
    click.echo(json.dumps(rows, indent=1, allow_nan=False) if as_json else listing.rows_text(run.readable(rows)))


def _check(ctx: click.Context, found: dict[str, Any], as_json: bool) -> None:
    """Print what a dump holds and lacks; exit status 2 where it cannot be measured."""
    if as_json:
        click.echo(json.dumps(found, allow_nan=False))
    else:
        shape = "x".join(str(found[name]) for name in ("batch", "n_heads", "n_tokens", "head_dim"))
        marks = [
            found["model"] or "no model name",
            f"RoPE: {found['rope'] or 'not said'}",
            "synthetic" if found["synthetic"] else "",
        ]
        counts = (found["n_layers"], found["n_key_layers"], found["n_value_layers"], found["n_query_layers"])
        click.echo(clean(f"{found['file']}: {', '.join(mark for mark in marks if mark)}", 300))
        click.echo(
            "  holds: {} layers: keys of {}, values of {}, queries of {}".format(*counts)
            + (f"; [batch x heads x tokens x head_dim] = {shape}" if found["batch"] else "")
            + f"; {', '.join(found['dtypes'])}; {found['n_bytes']:,} bytes"
        )
        for name in ("lacks", "problems"):
            for text in found[name][:MAX_LINES]:
                click.echo(clean(f"  {'problem' if name == 'problems' else name}: {text}", 300))
        if len(found["problems"]) > MAX_LINES:
            click.echo(f"  and {len(found['problems']) - MAX_LINES:,} more problems: --json has all")
        if not found["problems"]:
            click.echo("  ready to measure")
    if found["problems"]:
        ctx.exit(InputError.exit_status)


def _number(name: str, text: str | None) -> float | None:
    """A decimal number in ASCII digits. Raises InputError naming the option."""
    import re

    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{0,15})?(e[0-9]{1,2})?", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a number, such as 10000")
    return float(text)


def _numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Decimal numbers with commas between. Raises InputError."""
    return tuple(_number(name, part.strip()) or 0.0 for part in text.split(",")) if text else ()


@click.command(short_help="Write a synthetic KV dump, for tests and what-ifs.")
@click.option("--out", required=True, metavar="FILE", help="The dump: .npz or .safetensors.")
@click.option("--layers", type=WHOLE, default=4, show_default=True)
@click.option("--heads", type=WHOLE, default=2, show_default=True)
@click.option("--tokens", type=WHOLE, default=320, show_default=True)
@click.option("--head-dim", type=WHOLE, default=128, show_default=True)
@click.option("--seed", type=WHOLE, default=2025, show_default=True)
@click.option("--key-ranges", metavar="A,B", help="Size of keys, one number or one a layer; default: growing.")
@click.option("--value-ranges", metavar="A,B", help="Size of values, one number or one a layer; default: growing.")
@click.option("--outlier-channels", type=WHOLE, help="Key channels of a head with an offset; default: one in 32.")
@click.option("--outlier-offset", metavar="N", default="6", show_default=True, help="That offset, in deviations.")
@click.option("--sinks", type=WHOLE, default=4, show_default=True, help="Tokens of low norm, the first two and others.")
@click.option("--sink-key", metavar="N", default="0.1", show_default=True, help="Size of their keys.")
@click.option("--sink-value", metavar="N", default="0.3", show_default=True, help="Size of their values.")
@click.option("--tails", metavar="N", default="2", show_default=True, help="Weight of the tails; 0: a bell.")
@click.option("--queries", type=WHOLE, default=0, show_default=True, help="Queries of the last tokens.")
@click.option(
    "--sink-pull",
    metavar="N",
    default="0",
    show_default=True,
    help="Attention scores of sinks above those of other tokens, in nats.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def synthesize(
    out: str,
    layers: int,
    heads: int,
    tokens: int,
    head_dim: int,
    seed: int,
    key_ranges: str | None,
    value_ranges: str | None,
    outlier_channels: int | None,
    sinks: int,
    queries: int,
    as_json: bool,
    **numbers: str,
) -> None:
    """Write a synthetic KV dump: ranges by layer, outlier channels, attention sinks, heavy tails, seeded.

    For tests and for what-ifs ("what if outliers doubled?"): every number is assumed, and the dump says of itself that
    it is synthetic, so that tables and figures of `dse measure` do.
    """
    from dse.measure import synthetic as kv_sample
    from dse.measure import synthetic_file as kv_sample_file

    recipe = kv_sample.Recipe(
        layers,
        heads,
        tokens,
        head_dim,
        seed,
        _numbers("key-ranges", key_ranges),
        _numbers("value-ranges", value_ranges),
        outlier_channels,
        n_sinks=sinks,
        n_queries=queries,
        **{name: _number(name.replace("_", "-"), text) or 0.0 for name, text in numbers.items()},
    )
    kv_sample_file.write(out, recipe, progress_bar)
    if as_json:
        click.echo(json.dumps({"out": out, "n_bytes": kv_sample_file.size(recipe), **kv_sample_file.about(recipe)}))
    else:
        click.echo(f"synthetic dump: {out} ({recipe.text()})")
