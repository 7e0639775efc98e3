"""Plans by layer of SmolLM2-135M, chosen on one text and judged on others, beside single formats of as many bits.

`python -m scripts.mixed_plans MODEL.gguf BY_LAYER MEASURED CALIBRATION TEXT...`: BY_LAYER and MEASURED are the --out of
`dse measure --perplexity --sides key,value --by-layer` and of `dse measure` on a dump of the text that plans are chosen
on. Prints a Markdown table: divergence and rise of perplexity on the texts that were not chosen on.
"""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dse import quantizers
from dse.measure import mixed_plan
from dse.transformer import in_loop, load, tokenizer

#: single formats, and vLLM's lists of layers in 16 bits: the first and last two
ALONE = (
    *("int8_per_token_head", "fp8", "kivi:bits=4", "int4_per_token_head", "kivi"),
    *("int4_per_token_head:skip=0+1+-1+-2", "kivi:skip=0+1+-1+-2"),
)
#: formats that plans choose from: what one server mixes (two kernels and 16 bits), and all
SETS = {"16 bits, INT4": ("fp16", "int4_per_token_head"), "all": ()}
BUDGETS = (4.5, 5.0, 6.0, 8.0)
N_TOKENS, N_CALIBRATION = 1024, 1024


def _silent(items: Any, **_: Any) -> Any:
    return nullcontext(items)


def plans(by_layer: str, measured: str, folder: str) -> dict[str, str]:
    """Plans of every budget, set and objective: name -> plan:FILE."""
    found = {}
    for objective, source in (("divergence", by_layer), ("output_error", measured), ("mse", measured)):
        for name, methods in SETS.items():
            errors = mixed_plan.load(source, methods or None, objective)
            for bits in BUDGETS:
                budget = mixed_plan.budget_bits(errors, bits)
                if budget < sum(float(own.min()) for own in errors.bits):
                    continue
                mixed = mixed_plan.least_error(errors, budget, f"{bits:g} bits an element")
                path = f"{folder}/{objective}-{len(methods)}-{bits:g}.toml"
                mixed_plan.write(mixed, path, "scripts.mixed_plans")
                found[f"plan by {objective}, {name}, {bits:g} bit"] = f"plan:{path}"
    return found


def table(model_path: str, by_layer: str, measured: str, calibration: str, *texts: str) -> str:
    """The table in Markdown."""
    model = load.load(model_path)

    def tokens(path: str, n: int) -> Any:
        return tokenizer.tokens_of(path, model.encode, n, model.architecture.context_tokens, model.name)

    with tempfile.TemporaryDirectory() as folder:
        named = {name: name for name in ALONE} | plans(by_layer, measured, folder)
        named = {name: quantizers.parse(method).name for name, method in named.items()}
        known, columns = tokens(calibration, N_CALIBRATION), []
        for path in texts:
            own = in_loop.scores(model, tokens(path, N_TOKENS), known, in_loop.Scoring(list(named.values())), _silent)
            columns.append({score.method: score for score in own})
    heads = [Path(path).stem for path in texts]
    lines = ["| format or plan | bits | " + " | ".join(f"{head}, nat | perplexity" for head in heads) + " |"]
    lines.append("|---|---|" + "---|---|" * len(heads))
    for name, method in named.items():
        scores = [column[method] for column in columns]
        cells = [f"{s.kl_nats:.4f} | {100 * s.log_ratio:+.1f} ± {200 * s.log_ratio_se:.1f} %" for s in scores]
        lines.append(f"| {name} | {scores[0].stored_bits:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    print(table(*sys.argv[1:]))
