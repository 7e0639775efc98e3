"""Work on real keys and values: quantize, thresholds, measure, synthesize, lab, mix, study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dse.core.answer import Answer
from dse.core.errors import InputError, clean, show
from dse.core.field import BYTES, NAMES, PERCENT, SWITCH, TOKENS, WHOLE, WHOLES, declarations
from dse.measure import MAX_BYTES
from dse.measure.options import MeasureOptions
from dse.measure.recipe import Recipe
from dse.operations.declare import SILENT, Console, Operation, argument, operation, option, record
from dse.operations.shared import Printed, json_option, one_of, several

if TYPE_CHECKING:
    import pandas as pd

    from dse.measure.lab import DumpMeasurement, HeadView, Held, ReadOptions
    from dse.measure.mixed_plan import Mixed
    from dse.quantizers import QuantizerSpec
    from dse.specs.measurements import MeasurementFile

#: problems that --check prints
MAX_LINES = 20


def nonfinite_option() -> Any:
    """The field that says what NaN and infinities are taken as."""
    return option(
        "raise", "What to do with NaN and infinities: refuse, or take them as 0 and +-65504.", metavar="raise|replace"
    )


def heads_option(default: int | None = None) -> Any:
    """The field of the heads of tensors that do not say them."""
    return option(default, "Heads of tensors [tokens, channels].", WHOLE)


def size_option(help: str = "Largest size of all tensors of a file.") -> Any:
    """The field of the largest size that is read."""
    return option(MAX_BYTES, help, BYTES)


@operation("quantize", "Quantize a KV dump bit-exactly: bits and errors.")
class QuantizeDump(Printed):
    """Quantize the keys and values of a KV dump bit-exactly (.npz, .npy, .safetensors; FP16, BF16, FP32).

    Shows, per tensor, stored and effective bits, mean squared and largest error and signal-to-noise ratio. Tensors are
    [tokens, channels] or [batch, heads, tokens, head_dim] and named like layer0.key, layer0.value. With --out, the
    packed buffers and a measurement file for `dse point --measurements` are written.
    """

    file: str = argument()
    methods: Sequence[str] = option(
        help="KV quantizer with parameters, as for `dse point`; may be given several times.",
        name="quantizer",
        former=("--method",),
        metavar="Q",
        is_repeated=True,
    )
    thresholds: str | None = option(None, "Oaken's thresholds, from `dse thresholds`.", metavar="T.toml")
    heads: int = heads_option(1)
    nonfinite: str = nonfinite_option()
    out: str | None = option(None, "Directory for the packed buffers and measurement.json.", metavar="DIR")
    synthetic: bool = option(False, "Mark the measurement as one of synthetic data.", SWITCH)
    max_bytes: int = size_option()
    as_json: bool = json_option("Print the measurement as JSON.")

    def run(self, console: Console = SILENT) -> MeasurementFile:
        """The bits and errors of each tensor."""
        from dse.measure import dump

        names = ("thresholds", "nonfinite", "synthetic", "max_bytes")
        how = MeasureOptions(n_heads=self.heads, **{name: getattr(self, name) for name in names})
        return dump.run(self.file, several(self.methods), how, self.out, console.bar)

    def text(self, outcome: MeasurementFile) -> str:
        """A table of the tensors, and the files written."""
        from dse.measure import dump

        return dump.text(outcome, self.out)

    def document(self, outcome: MeasurementFile) -> Any:
        """The measurement file."""
        import json

        from dse.specs import measurements

        return json.loads(measurements.to_json(outcome))


@operation("thresholds", "Profile Oaken's thresholds from KV dumps.", indent=None)
class ProfileThresholds(Printed):
    """Profile Oaken's thresholds (its offline step) from KV dumps, each one run; averaged per layer."""

    files: Sequence[str] = argument(is_repeated=True)
    out: str = option(help="File to write the thresholds to.", metavar="T.toml")
    shares: str = option("4/90/6", "Shares of the groups in percent, outermost first.", metavar="A/B/C")
    model: str = option("", "The model that the dumps come from, for the record.", shows_default=False)
    max_bytes: int = size_option()
    as_json: bool = json_option("Print the thresholds as JSON.")

    def run(self, console: Console = SILENT) -> dict[str, Any]:
        """The thresholds of each layer."""
        from dse.measure import dump

        files = several(self.files)
        return dump.profile_to(files, self.out, self.shares, self.model, self.max_bytes, progress=console.bar)

    def text(self, outcome: dict[str, Any]) -> str:
        """The file and what it is averaged over."""
        counts = f"{outcome['n_layers']} layers, {outcome['n_runs']} runs, {outcome['n_elements']:,} elements"
        return f"thresholds: {self.out}\n  {counts}"


@operation("measure", "Errors and bits of quantizers on a KV dump.", indent=None)
class MeasureDump(Printed):
    """Measure what quantizers do to the keys and values of a KV dump, and to attention over them.

    For each layer, head and context length: signal-to-noise ratio, mean squared and largest error, cosine, error of the
    attention output, attention moved; stored bits of the packed bytes. Writes a table (Parquet), measurement.json for
    `--measurements`, a summary and figures into DIR. Stop it at any time: the same command goes on. Reads a layer at a
    time, so that dumps larger than memory will do. docs/reference/dumps.md says what a dump is.

    With --perplexity, --model FILE.gguf|DIR and --text FILE, without SOURCE: perplexity, divergence and top-1 agreement
    of a language model against 16 bits, its keys and values quantized as the cache is written.
    """

    source: str | None = argument(None)
    perplexity: bool = option(False, "Perplexity of --model on --text, without SOURCE.", SWITCH)
    text_file: str | None = option(None, "With --perplexity: the text, UTF-8.", name="text", metavar="FILE")
    tokens: int = option(2048, "Its tokens that are scored.", TOKENS)
    calibration: str | None = option(
        None, "Another text, for Oaken's thresholds and such; default: --text itself.", metavar="FILE"
    )
    sides: Sequence[str] = option(("both",), "Quantized sides, each scored by itself.", NAMES, metavar="both,key,value")
    only_layers: Sequence[int] | None = option(None, "Quantized layers; default: all.", WHOLES, metavar="A,B")
    by_layer: bool = option(False, "Quantize each of the layers by itself.", SWITCH)
    methods: Sequence[str] | None = option(
        None,
        "KV quantizers with parameters, as for `dse point`; with --perplexity some of each kind where none is named.",
        NAMES,
        name="quantizers",
        former=("--methods", "--quantizer"),
        metavar="A,B",
    )
    policies: Sequence[str] | None = option(
        None,
        "With --perplexity: token policies that evict, as `dse list tokens` has them, behind a prompt.",
        NAMES,
        metavar="A,B",
    )
    prompt: int | None = option(
        None,
        "With --perplexity: first tokens that are not scored, which policies evict from; default with them: half.",
        WHOLE,
        unit="token",
    )
    out: str | None = option(
        None, "Directory of the results; one that was begun the same way is finished.", metavar="DIR"
    )
    only_check: bool = option(False, "Say what SOURCE holds and lacks, and stop.", SWITCH, name="check")
    how: MeasureOptions = record(MeasureOptions)
    as_json: bool = json_option("Print the summary as JSON.")

    def unused(self) -> dict[str, str]:
        """Perplexity needs a model, a text and methods alone."""
        of_text = ("text_file", "tokens", "calibration", "sides", "only_layers", "by_layer", "policies", "prompt")
        if not self.perplexity:
            return dict.fromkeys(of_text, "without --perplexity")
        used = ("perplexity", "methods", "out", "as_json", "model", *of_text)
        names = (*(field.name for field in fields(self)), *declarations(MeasureOptions))
        return {name: "with --perplexity" for name in names if name not in used}

    def run(self, console: Console = SILENT) -> Any:
        """The table of the measurement, what a check found, or the scores of language models."""
        if self.perplexity:
            return self._perplexity(console)
        if self.source is None:
            raise InputError(
                "SOURCE is missing: give a KV dump (docs/reference/dumps.md), or --perplexity with --model and --text"
            )
        from dse.measure import run

        if self.only_check:
            return run.check(self.source, self.how, console.bar)
        if not self.methods:
            raise InputError("--quantizers is missing: name some, such as --quantizers nqkv,kivi:bits=2")
        if self.out is None:
            raise InputError("--out is missing: see dse measure --help")
        console.if_stopped(f"stopped: finished parts are kept in {self.out}: the same command goes on")
        return run.run(self.source, several(self.methods), self.out, self.how, console.bar)

    def _perplexity(self, console: Console) -> list[dict[str, Any]]:
        """A row a method and sides, 16 bits first."""
        from dse.specs import tokens as token_policies
        from dse.transformer import in_loop, kept_scores, load, tokenizer

        if self.text_file is None or not self.how.model:
            lacks = "--text FILE" if self.text_file is None else "--model FILE.gguf|DIR"
            raise InputError(f"{lacks} is missing: --perplexity needs --model and --text")
        model = load.load(self.how.model)
        texts = (self.text_file, self.calibration or self.text_file)
        context = model.architecture.context_tokens
        tokens, known = (tokenizer.tokens_of(path, model.encode, self.tokens, context, model.name) for path in texts)
        policies = several(self.policies or ())
        for policy in policies:
            token_policies.parse(policy)
        methods, sides = several(self.methods or (() if policies else in_loop.METHODS)), several(self.sides)
        prompt = self.prompt if self.prompt is not None else len(tokens) // 2 if policies else 0
        if not (1 if policies else 0) <= prompt <= len(tokens) - 2:
            raise InputError(f"prompt = {prompt:,}: must be 1 to {len(tokens) - 2:,}: two tokens of the text are left")
        scoring = in_loop.Scoring([*methods, *policies], sides, self.only_layers, self.by_layer, prompt)
        if self.out is None:
            return in_loop.rows(in_loop.scores(model, tokens, known, scoring, console.bar))
        console.if_stopped(f"stopped: finished methods are kept in {self.out}: the same command goes on")
        return in_loop.rows(kept_scores.scores(model, tokens, known, scoring, self.out, console.bar))

    def written(self, outcome: Any, console: Console) -> list[str]:
        """Draw the figures of a measurement; write the scores of a language model."""
        if self.perplexity and self.out is not None:
            import pandas as pd

            from dse.core import files

            paths = files.publish(self.out, {"perplexity.csv": files.csv_of(pd.DataFrame(outcome))})
            return [] if self.as_json else [f"scores: {path}" for path in paths]
        if self.perplexity or self.only_check:
            return []
        from dse.figures.export import measurement
        from dse.measure import run

        page = measurement.write(outcome, console.command)
        if self.as_json:
            return []
        before = f"{outcome.n_before:,} parts were there already, checked against their hashes"
        used = f"for design points and sweeps: --measurements {outcome.folder / run.MEASUREMENT}"
        return [*([before] if outcome.n_before else []), f"measured: {page}", used]

    def text(self, outcome: Any) -> str:
        """The measurement, the check or the scores as people read them."""
        from dse.measure import table
        from dse.report import listing

        if self.perplexity:
            from dse.transformer import in_loop

            return listing.rows_text(in_loop.readable(outcome))
        return _check_text(outcome) if self.only_check else table.text(outcome.summary)

    def document(self, outcome: Any) -> Any:
        """The summary, the check or the scores."""
        return outcome if self.perplexity or self.only_check else outcome.summary

    def status(self, outcome: Any) -> int:
        """Bad input where a checked dump cannot be measured."""
        return InputError.exit_status if self.only_check and not self.perplexity and outcome["problems"] else 0


def _check_text(dump: dict[str, Any]) -> str:
    """The contents of a dump, and what it lacks."""
    shape = "x".join(str(dump[name]) for name in ("batch", "n_heads", "n_tokens", "head_dim"))
    marks = [
        dump["model"] or "no model name",
        f"RoPE: {dump['rope'] or 'not said'}",
        "synthetic" if dump["synthetic"] else "",
    ]
    counts = (dump["n_layers"], dump["n_key_layers"], dump["n_value_layers"], dump["n_query_layers"])
    lines = [
        clean(f"{dump['file']}: {', '.join(mark for mark in marks if mark)}", 300),
        "  holds: {} layers: keys of {}, values of {}, queries of {}".format(*counts)
        + (f"; [batch x heads x tokens x head_dim] = {shape}" if dump["batch"] else "")
        + f"; {', '.join(dump['dtypes'])}; {dump['n_bytes']:,} bytes",
    ]
    for name in ("lacks", "problems"):
        label = "problem" if name == "problems" else name
        lines += [clean(f"  {label}: {text}", 300) for text in dump[name][:MAX_LINES]]
    if len(dump["problems"]) > MAX_LINES:
        lines.append(f"  and {len(dump['problems']) - MAX_LINES:,} more problems: --json has all")
    return "\n".join(lines if dump["problems"] else [*lines, "  ready to measure"])


@operation("synthesize", "Write a synthetic KV dump, for tests and what-ifs.", indent=None)
class SynthesizeDump(Printed):
    """Write a synthetic KV dump: ranges by layer, outlier channels, attention sinks, heavy tails, seeded.

    For tests and for what-ifs ("what if outliers doubled?"): every number is assumed, and the dump says of itself that
    it is synthetic, so that tables and figures of `dse measure` do.
    """

    out: str = option(help="The dump: .npz or .safetensors.", metavar="FILE")
    recipe: Recipe = record(Recipe)
    as_json: bool = json_option("Print what was written as JSON.")

    def run(self, console: Console = SILENT) -> Recipe:
        """The recipe of the dump that was written."""
        from dse.measure import synthetic_file

        synthetic_file.write(self.out, self.recipe, console.bar)
        return self.recipe

    def text(self, outcome: Recipe) -> str:
        """The file and its recipe."""
        return f"synthetic dump: {self.out} ({outcome.text()})"

    def document(self, outcome: Recipe) -> dict[str, Any]:
        """The file, its size and its recipe."""
        from dse.measure import synthetic_file

        return {"out": self.out, "n_bytes": synthetic_file.size(outcome), **synthetic_file.about(outcome)}


@dataclass(frozen=True, repr=False)
class LabResult(Answer):
    """One quantizer on a dump: `measured` has bits and errors of all of it, `view` one head before and after.

    What is measured is computed once it is asked for; printed, it is the bits and errors of keys and values.
    """

    held: Held
    spec: QuantizerSpec
    how: ReadOptions
    #: layer, side, head, first token and number of tokens of the view
    place: tuple[int, Any, int, int, int]

    @cached_property
    def measured(self) -> DumpMeasurement:
        """Bits by part, and errors by layer and head."""
        from dse.measure import lab

        return lab.measured(self.held, self.spec, self.how)

    @cached_property
    def view(self) -> HeadView:
        """The values of one head before and after, and their histogram."""
        from dse.measure import lab

        return lab.view(self.held, self.spec, self.how, *self.place)

    @property
    def table(self) -> pd.DataFrame:
        """Errors by layer and head, those of all of the dump last."""
        return self.measured.errors

    def text(self) -> str:
        """Stored bits, and the error of all layers, of keys and of values."""
        errors = self.table[self.table["layer"].isna()].set_index("side")
        lines = [f"{self.spec.name} on {self.held.name}"]
        for side, bits in zip(("key", "value"), self.measured.ledger["stored_bits"], strict=False):
            lines.append(
                f"  {side + 's':<8}{bits:.4g} bit stored, {errors.loc[side, 'sqnr_db']:.4g} dB signal to noise"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{self.spec.name} on {self.held.name}"


@operation(
    "lab",
    "One quantizer on a KV dump: bits, errors, values.",
    function="lab",
    positional=("method", "source"),
    indent=None,
)
class InspectQuantizer(Printed):
    """Inspect one quantizer on a KV dump (default: the sample of SmolLM2-135M that ships), as tables for `dse plot`.

    Bits an element by part (bits.csv), errors by layer and head (errors.csv), and of one head the histogram with the
    quantizer's thresholds (histogram.csv) and the first 256 tokens before and after (values.csv). Oaken's thresholds
    are profiled on the dump itself; of many quantizers, at all context lengths: `dse measure`.

    >>> lab = dse.lab("kivi:bits=2")
    >>> lab.view.before.shape
    (256, 64)
    """

    source: str | None = argument(None)
    method: str = option(
        help="KV quantizer with parameters, such as kivi:bits=2.", name="quantizer", former=("--method",), metavar="Q"
    )
    out: str | None = option(None, "Directory of the tables.", metavar="DIR", in_python=False)
    layer: int | None = option(None, "Layer whose values are shown; default: the first.", WHOLE)
    side: Literal["key", "value"] = option("key", "Keys or values.", metavar="key|value", is_said=True)
    head: int = option(0, "Head whose values are shown.", WHOLE, is_said=True)
    first: int = option(0, "First token of the map of values.", WHOLE, is_said=True)
    error: str = option(
        "sqnr_db",
        "Error of the map of layers and heads.",
        metavar="sqnr_db|mse|output_error|...",
        is_said=True,
        in_python=False,
    )
    heads: int | None = heads_option()
    nonfinite: str = nonfinite_option()
    as_json: bool = json_option("Print what was written as JSON.")

    def lacking(self) -> str:
        """A command writes tables."""
        return "" if self.out is not None else "--out is missing: see dse lab --help"

    def run(self, console: Console = SILENT) -> LabResult:
        """The quantizer on the dump: `measured` and `view`."""
        from dse import quantizers
        from dse.figures.export.lab import MAX_TOKENS, check
        from dse.measure import kernels, lab

        check(self.side, self.error)
        one_of("nonfinite", self.nonfinite, ("raise", "replace"))
        spec = quantizers.parse(self.method)
        if spec.family.name not in kernels.measurable():
            raise InputError(
                f"quantizer = {show(self.method)}: has no kernel for a dump; known: {', '.join(kernels.measurable())}"
            )
        how = lab.ReadOptions(self.heads, self.nonfinite)
        held = lab.sample() if self.source is None else lab.hold(self.source, how=how)
        layer = held.indices[0] if self.layer is None else self.layer
        return LabResult(held, spec, how, (layer, self.side, self.head, self.first, MAX_TOKENS))

    def _paths(self, outcome: LabResult) -> list[Path]:
        from dse.figures.export import lab

        held, (layer, side, head, _, _) = outcome.held, outcome.place
        data = held.name + (", synthetic data" if held.about.synthetic else "")
        place = f"{outcome.spec.name}, layer {layer:,}, head {head:,}, {side}s"
        view = outcome.view  # what a dump lacks is said before all of it is measured
        return lab.write(str(self.out), outcome.measured, view, place, side, self.error, data)

    def text(self, outcome: LabResult) -> str:
        """The tables, and which figures are drawn of each."""
        from dse.figures.export import lab

        return "\n".join(f"{path} (dse plot {' or '.join(lab.KINDS[path.stem])})" for path in self._paths(outcome))

    def document(self, outcome: LabResult) -> dict[str, Any]:
        """The quantizer and its tables."""
        return {"method": outcome.spec.name, "tables": [str(path) for path in self._paths(outcome)]}


@operation("mix", "A quantizer for each layer, from errors and a budget.", indent=1)
class MixLayers(Printed):
    """Choose a quantizer for the keys and the values of each layer, so that the total error is least in a budget.

    DIR is the --out of `dse measure`, or of `dse measure --perplexity --sides key,value --by-layer`: then the sum of
    the divergences is least, in nats. Exact, by dynamic programming. Squared errors relative to the signal of their
    layer are added over layers and sides, as if they were independent. The plan is a file that `dse point`, `dse ask`
    and `dse sweep` take as a quantizer: --quantizer plan:FILE.toml, on one device or on several (--tp 4).
    """

    source: str = argument(metavar="DIR|TABLE")
    budget_bits: str | None = option(
        None, "Most stored bits an element, mean over layers, keys and values.", metavar="N", unit="bit"
    )
    budget_bytes: int | None = option(None, "Or most bytes of all measured keys and values.", BYTES)
    max_error: str | None = option(
        None, "Or the other way round: fewest bits at a relative error of at most E.", metavar="E"
    )
    max_rise: float | None = option(
        None,
        "Or fewest bits at a predicted rise of perplexity of at most so much, of scores by layer.",
        PERCENT,
        former=("--max-drop",),
        metavar="1%",
    )
    methods: Sequence[str] | None = option(
        None,
        "KV quantizers to choose from; default: all measured ones, and fp16.",
        NAMES,
        name="quantizers",
        former=("--methods", "--quantizer"),
        metavar="A,B",
    )
    objective: str | None = option(
        None,
        "Error of the attention output (default where measured) or of keys and values; divergence of scores by layer.",
        metavar="output_error|mse|divergence",
    )
    context_tokens: int | None = option(
        None, "Measured context whose errors and bits count; default: the longest.", TOKENS, name="context"
    )
    out: str | None = option(None, "The plan, for --quantizer plan:FILE.toml.", metavar="FILE.toml")
    figure: str | None = option(
        None,
        "Error against bits of all plans: .pdf, .svg, .png, .html; .csv for `dse plot mixed_plans`.",
        metavar="FILE",
    )
    as_json: bool = json_option("Print the plan as JSON.")

    def run(self, console: Console = SILENT) -> Mixed:
        """The plan that is best within the budget, with all plans along the way."""
        from dse.measure import mixed_plan

        budgets = {
            "budget-bits": self.budget_bits,
            "budget-bytes": self.budget_bytes,
            "max-error": self.max_error,
            "max-rise": self.max_rise,
        }
        named = [name for name, value in budgets.items() if value is not None]
        if len(named) != 1:
            raise InputError(
                "give one of --budget-bits, --budget-bytes, --max-error and --max-rise: what the plan has to keep to"
            )
        self._check_figure()
        if self.out is not None and not self.out.lower().endswith(".toml"):
            raise InputError(f"out = {show(self.out)}: must end in .toml")
        limit = _positive(named[0], str(budgets[named[0]])) if self.max_rise is None else self.max_rise
        methods = None if self.methods is None else several(self.methods)
        objective = "divergence" if self.max_rise is not None else self.objective
        errors = mixed_plan.load(self.source, methods, objective, self.context_tokens)
        if self.max_rise is not None:
            return mixed_plan.least_bits(errors, math.log1p(self.max_rise), f"perplexity +{100 * self.max_rise:g} %")
        if self.max_error is not None:
            return mixed_plan.least_bits(errors, limit, f"error {limit:g}")
        if self.budget_bytes is not None:
            return mixed_plan.least_error(errors, 8 * limit, f"{self.budget_bytes:,} bytes")
        return mixed_plan.least_error(errors, mixed_plan.budget_bits(errors, limit), f"{limit:g} bits an element")

    def _check_figure(self) -> None:
        from dse.figures.export import image

        if self.figure and self.figure.rpartition(".")[2].lower() not in image.FORMATS:
            raise InputError(f"figure = {show(self.figure)}: must end in one of {', '.join(image.FORMATS)}")

    def written(self, outcome: Mixed, console: Console) -> list[str]:
        """Write the plan and its figure."""
        from dse.core import files
        from dse.measure import mixed_plan

        drawn = self._drawn(outcome, console.command) if self.figure else {}
        if self.out is not None:
            mixed_plan.write(outcome, self.out, console.command)
        for path, content in drawn.items():
            files.write(path, content)
        names = {"plan": self.out, "figure": self.figure}
        return [] if self.as_json else [f"{name}: {path}" for name, path in names.items() if path]

    def _drawn(self, outcome: Mixed, made_by: str) -> dict[Path, bytes]:
        """The figure's file; of a table also what its figure says beside it."""
        from dse.figures import source
        from dse.figures.export import image
        from dse.figures.plot import answer

        table, path = answer.source_of(outcome), Path(str(self.figure))
        ending = path.name.rpartition(".")[2].lower()
        drawn = {path: image.export(answer.chart_of(outcome), ending, made_by, table.table)}
        if ending in ("csv", "parquet"):
            drawn[path.parent / f"{path.stem}{source.BESIDE}"] = source.beside(table.about)
        return drawn

    def text(self, outcome: Mixed) -> str:
        """The plan as people read it."""
        from dse.measure import mixed_plan

        return mixed_plan.text(outcome.summary())

    def document(self, outcome: Mixed) -> dict[str, Any]:
        """The plan, and the files."""
        return {**outcome.summary(), "out": self.out, "figure": self.figure}


def _positive(name: str, text: str) -> float:
    """A number from 0 on in ASCII digits. Raises InputError naming the option."""
    import re

    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{0,15})?(e-?[0-9]{1,2})?", text, re.ASCII):
        raise InputError(f"{name} = {show(text)}: must be a number from 0 on, such as 4.5")
    return float(text)


@operation("study", "The papers' observations and experiments on a model.")
class StudyModel(Operation):
    """Look at a language model's own keys and values as the papers did, and repeat their experiments on it.

    MODEL: a .gguf file or a Hugging Face directory, as for `dse dump`. Writes NAME.study.csv (ranges, outlier channels,
    normality, sinks, thresholds by run; perplexity by Oaken's groups and texts, NQKV's blocks, KIVI's axes, SinkQ's
    sizes, sinks, window and layers) and NAME.study.json (command, SHA-256 of weights and tokens). Stop it at any time:
    the same command goes on. Needs a checkout of the repository, whose folder studies has the experiments.
    """

    model: str = argument(metavar="FILE|DIR")
    texts: Sequence[str] = option(help="Texts, UTF-8; each is read from its start on.", kind=NAMES, metavar="A,B,C")
    calibration: str = option(help="Another text, for thresholds and scales.", metavar="FILE")
    out: str = option(help="Directory of the table; one that was begun is finished.", metavar="DIR")
    name: str = option("model", "Name of the model in the table and its files.", metavar="NAME")
    windows: int = option(2, "Windows of each text that are scored.", WHOLE)
    tokens: int = option(512, "Tokens of a window; its later half is scored.", TOKENS)

    def run(self, console: Console = SILENT) -> Path:
        """The table of the study."""
        import re

        from dse.core import checkout
        from dse.transformer import load

        study = checkout.module("studies.study", "study")
        texts = several(self.texts)
        if not 1 <= self.windows <= 1000:
            raise InputError(f"windows = {self.windows}: must be 1 to 1,000")
        if not 320 <= self.tokens <= 4096:
            raise InputError(f"tokens = {self.tokens}: must be 320 to 4,096, more than the 300 that may be sinks")
        if len({Path(text).stem for text in texts}) < len(texts):
            raise InputError(f"texts = {', '.join(texts)}: two have the same name: rename one")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.name):
            raise InputError(f"name = {show(self.name)}: must be letters, digits, dots and dashes, such as smollm2")
        model = load.load(self.model)
        console.if_stopped(f"stopped: finished parts are kept in {self.out}: the same command goes on")
        read = study.Texts(model, texts, self.calibration, self.windows, self.tokens)
        path: Path = study.run(read, self.name, self.out, console.command, console.bar)
        return path

    def text(self, outcome: Path) -> str:
        """The file that was written."""
        return f"studied: {outcome}"
