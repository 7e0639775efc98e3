"""Published scores of KV formats: `dse scores`."""

from __future__ import annotations

from typing import Any

from dse.core.answer import Rows
from dse.core.errors import InputError
from dse.core.field import SWITCH
from dse.operations.declare import SILENT, Console, operation, option
from dse.operations.shared import Printed, json_option


@operation("scores", "What published scores say that a KV format costs.", function="scores", positional=("format",))
class FindScores(Printed):
    """Find published scores of a KV format beside those of 16 bits in the same setup, by family of tasks.

    Of the model where there are some, else of its series, else of other models; the drop of scores, and beside it the
    rise of perplexity, with a 95 % interval, and "cannot be told" where too little was printed. Short answers hide a
    drop: look at the longest task that you run.
    Without a format: all that have scores. With --measured: perplexity, divergence and agreement of SmolLM2-135M with
    the format in the loop, on four texts.

    >>> dse.scores("fp8", model="llama3.1-8b")[0]["of"]
    'llama3.1-8b'
    """

    format: str | None = option(
        None, "KV quantizer, or a format by its published name.", name="quantizer", former=("--format",), metavar="NAME"
    )
    model: str | None = option(None, "A model by name, such as qwen3-30b-a3b.", metavar="NAME")
    measured: bool = option(False, "What was measured on the sample model instead, by text.", SWITCH)
    as_json: bool = json_option("Print a list of objects, one a family of tasks.")

    def run(self, console: Console = SILENT) -> list[dict[str, Any]]:
        """A row a family of tasks: its drop of scores or rise of perplexity as a share, or its divergence in nats."""
        from dse.questions import scores
        from dse.specs import published_scores, sample_scores

        if self.measured and (self.format is None or self.model is not None):
            raise InputError(
                "measured: is of the sample model: takes --quantizer alone, such as dse scores --quantizer fp8 "
                "--measured"
            )
        if self.measured and self.format is not None:
            return sample_scores.by_text(published_scores.name_of(self.format))
        if self.format is None and self.model is not None:
            raise InputError("quantizer is missing: give one with --quantizer: `dse scores` lists them")
        if self.format is None:
            return scores.overview()
        return scores.to_json(published_scores.losses(self.format, self.model))

    def value(self, outcome: list[dict[str, Any]]) -> Rows:
        """A row a family of tasks: its drop of scores or rise of perplexity as a share, or its divergence in nats."""
        return Rows(outcome, self.text(outcome))

    def text(self, outcome: list[dict[str, Any]]) -> str:
        """The table, with the models whose scores they are."""
        from dse.questions import scores

        if self.format is None:
            return scores.overview_text(outcome)
        if self.measured:
            return scores.measured_text(self.format, outcome)
        if not outcome:
            return f"{self.format}: no score of {self.model} or a model like it; of all models: leave --model out"
        return scores.text(outcome)
