"""Published scores of KV formats: `dse scores`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dse.core.answer import Rows
from dse.core.errors import InputError
from dse.core.field import NAMES, SWITCH
from dse.operations.declare import SILENT, Console, operation, option
from dse.operations.shared import Printed, json_option, several


@operation("scores", "What published scores say that a KV format costs.", function="scores", positional=("quantizers",))
class FindScores(Printed):
    """Find published scores of KV formats beside those of 16 bits in the same setup, by family of tasks.

    Of the model where there are some, else of its series, else of other models; the accuracy loss, and beside it the
    rise of perplexity, with a 95 % interval, and "not known" where too little was printed. Short answers hide a drop:
    look at the longest task that you run. Without a format: all that have scores, of the model where one is given. With
    --measured: perplexity, divergence and agreement of SmolLM2-135M with each format in the loop, on four texts, or
    with a token policy such as snapkv:budget=64 behind a prompt of 256.

    >>> dse.scores("fp8", model="llama3.1-8b")[0]["of"]
    'llama3.1-8b'
    """

    quantizers: Sequence[str] = option(
        (),
        "KV quantizers, or formats by their published names.",
        NAMES,
        former=("--quantizer", "--format"),
        metavar="A,B",
    )
    model: str | None = option(None, "A model by name, such as qwen3-30b-a3b.", metavar="NAME")
    measured: bool = option(False, "What was measured on the sample model instead, by text.", SWITCH)
    as_json: bool = json_option("Print a list of objects, one a family of tasks.")

    def run(self, console: Console = SILENT) -> list[dict[str, Any]]:
        """A row a format and family of tasks: its accuracy loss or rise of perplexity as a share, or its divergence in
        nats."""
        from dse.questions import scores
        from dse.specs import published_scores, sample_scores, tokens

        names = several(self.quantizers)
        if self.measured and (not names or self.model is not None):
            raise InputError(
                "measured: is of the sample model: takes --quantizers alone, such as dse scores --quantizers fp8 "
                "--measured"
            )
        if not names:
            return scores.overview(self.model)

        def found(name: str) -> list[dict[str, Any]]:
            if self.measured:
                is_policy = tokens.is_policy(name)
                return sample_scores.by_text(tokens.parse(name).name if is_policy else published_scores.name_of(name))
            return scores.to_json(published_scores.losses(name, self.model))

        return [{"quantizer": name, **row} for name in names for row in found(name)]

    def value(self, outcome: list[dict[str, Any]]) -> Rows:
        """The rows, printed as the table."""
        return Rows(outcome, self.text(outcome))

    def text(self, outcome: list[dict[str, Any]]) -> str:
        """The table, with the models whose scores they are."""
        from dse.questions import scores

        if not several(self.quantizers):
            return scores.overview_text(outcome, self.model)
        parts = []
        for name in several(self.quantizers):
            rows = [row for row in outcome if row["quantizer"] == name]
            if self.measured:
                parts.append(scores.measured_text(name, rows))
            elif not rows:
                parts.append(f"{name}: no score of {self.model} or a model like it; of all models: leave --model out")
            else:
                parts.append(scores.text(rows))
        if len(parts) > 1:
            parts = [f"{name}\n{part}" for name, part in zip(several(self.quantizers), parts, strict=True)]
        return "\n\n".join(parts)
