"""Published scores of KV formats as people and scripts read them (dse/specs/published_scores.py finds them)."""

import math
from collections.abc import Iterable
from typing import Any

from dse.core.columns import aligned
from dse.core.errors import InputError, show
from dse.specs import catalog, published_scores, sample_scores, tokens
from dse.specs.oaken_grid import SAMPLE
from dse.specs.published_scores import FAMILIES, Loss, Score, published

#: what a mean over scores is, by the family of tasks: all others are accuracy losses
_OF_FAMILY = {"perplexity": "perplexity_rise_frac", "kld": "divergence_nats"}
#: the means, their heads, and their unit and its size
_MEANS = {
    "score_drop_frac": ("accuracy loss", " %", 100.0),
    "perplexity_rise_frac": ("rise of perplexity", " %", 100.0),
    "divergence_nats": ("divergence", " nat", 1.0),
}


def to_json(losses: Iterable[Loss]) -> list[dict[str, Any]]:
    """An object a family of tasks: the accuracy loss, the rise of perplexity (both shares) or the divergence (nats),
    which are three things, and half of its 95 % interval."""
    rows = []
    for loss in losses:
        row = {**vars(loss), "models": list(loss.models), "verdict": loss.verdict}
        mean = row.pop("loss")
        column = _OF_FAMILY.get(loss.family, "score_drop_frac")
        rows.append({**row, **{name: mean if name == column else None for name in _MEANS}})
    return rows


def text(losses: Iterable[dict[str, Any]]) -> str:
    """The means as a table, with half of a 95 % interval; a column is left out that has none."""
    rows = list(losses)
    means = {name: told for name, told in _MEANS.items() if any(row[name] is not None for row in rows)}
    lines = [("tasks", "scores of", *(head for head, _, _ in means.values()), "rows", "sources", "")]
    for row in rows:
        cells = []
        for name, (_, unit, per) in means.items():
            within = "" if row["within"] is None else f" ± {per * row['within']:.2g}"
            cells.append("-" if row[name] is None else f"{per * row[name]:.2f}{within}{unit}")
        counts = (str(row["n_rows"]), str(row["n_sources"]))
        lines.append((FAMILIES[row["family"]], row["of"], *cells, *counts, row["verdict"]))
    return "\n".join(aligned(lines, (0, 1, len(lines[0]) - 1)))


def overview(model: str | None = None) -> list[dict[str, Any]]:
    """Every format with published scores, of a model where one is given: rows and sources, the most rows first. Raises
    InputError for a model of which there are none."""
    formats: dict[str, list[Score]] = {}
    for score in published():
        if model is None or published_scores.is_of(score, model):
            formats.setdefault(score.format, []).append(score)
    if not formats:
        catalog.model(str(model))  # refuses a name that nobody knows
        raise InputError(f"model = {show(model)}: nobody published a score; of models like it: add --quantizers fp8")
    return [
        {
            "format": name,
            "n_rows": len(scores),
            "n_sources": len({score.source for score in scores}),
            "n_models": len({score.model for score in scores}),
        }
        for name, scores in sorted(formats.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def overview_text(rows: Iterable[dict[str, Any]], model: str | None = None) -> str:
    """The formats as a table, and the command that says what one costs."""
    lines = [("format", "rows", "sources", "models")]
    lines += [(row["format"], str(row["n_rows"]), str(row["n_sources"]), str(row["n_models"])) for row in rows]
    of = f" --model {model}" if model else ""
    return "\n".join([*aligned(lines, 1), "", f"What one costs: dse scores --quantizers {lines[1][0]}{of}"])


def measured_text(format: str, rows: Iterable[dict[str, Any]]) -> str:
    """Scores of the sample model as a table, and between which errors its layers lie."""
    lines = [("text", "quantized", "bits", "perplexity", "over 16 bits", "divergence", "likeliest token", "tokens")]
    for row in rows:
        over = f"{100 * math.expm1(row['log_ratio']):+.2f} ± {100 * 2 * row['log_ratio_se']:.2g} %"
        lines.append(
            (
                row["text"],
                {"both": "keys, values", "key": "keys", "value": "values"}[row["sides"]],
                f"{row['stored_bits']:.2f}",
                f"{row['perplexity']:.2f}",
                over,
                f"{row['kl_nats']:.4f} nat",
                f"{100 * row['top1_agreement_frac']:.1f} %",
                f"{row['n_scored_tokens']:,}",
            )
        )
    if tokens.is_policy(format):
        behind = "Behind a prompt of 256 tokens; bits: 16 times the share of the text's tokens that are held at most"
        return "\n".join([f"On {SAMPLE}, with the policy in the loop", "", *aligned(lines, (0, 1)), "", behind])
    least, low, greatest, high = sample_scores.worst_layer(published_scores.name_of(format))
    layers = (
        f"error of the attention output: {100 * low:.1f} % in layer {least} to {100 * high:.1f} % in layer {greatest}"
    )
    return "\n".join([f"On {SAMPLE}, with the format in the loop", "", *aligned(lines, (0, 1)), "", layers])
