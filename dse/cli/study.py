"""The command `dse study`."""

import click

from dse.cli.options import WHOLE, command_line, progress_bar
from dse.core.errors import InputError, clean


@click.command(short_help="The papers' observations and experiments on a language model.")
@click.argument("model")
@click.option("--out", required=True, metavar="DIR", help="Directory of the table; one that was begun is finished.")
@click.option("--windows", type=WHOLE, default=24, show_default=True, help="Windows of held-out text that are scored.")
@click.option(
    "--tokens", type=WHOLE, default=512, show_default=True, help="Tokens of a window; its later half is scored."
)
@click.pass_context
def study(ctx: click.Context, model: str, out: str, windows: int, tokens: int) -> None:
    """Look at a language model's own keys and values as the papers did, and repeat their experiments on it.

    MODEL: mha, gqa or a .safetensors file. Writes MODEL.study.csv (ranges, outlier channels, normality, sinks;
    perplexity by Oaken's groups and texts, NQKV's blocks, KIVI's axes, SinkQ's sizes, sinks and layers) and
    MODEL.study.json (command, SHA-256 of the weights). Stop it at any time: the same command goes on.
    """
    from dse.measure.lm import study as of_model

    if not 1 <= windows <= 1000:
        raise InputError(f"windows = {windows}: must be 1 to 1,000")
    if not 320 <= tokens <= 4096:
        raise InputError(f"tokens = {tokens}: must be 320 to 4,096, more than the 300 that may be sinks")
    try:
        path = of_model.run(model, out, command_line(), progress_bar, windows, tokens)
    except KeyboardInterrupt:
        click.echo(clean(f"stopped: finished parts are kept in {out}: the same command goes on", 300), err=True)
        ctx.exit(130)
    click.echo(f"studied: {path}")
