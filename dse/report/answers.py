"""A page that answers without an install: does it fit, which format, and throughput against the speed of each user.

Its numbers are computed when it is built (`dse docs`), for named models, devices, formats and lengths; a script in the
page chooses among them. It needs no network.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from dse.core.progress import Progress
from dse.figures.export import web_page
from dse.model import quality
from dse.questions import engine_formats, interactivity
from dse.questions.common import Candidate
from dse.specs import catalog
from dse.specs.workload import Workload

PAGE = "answers.html"
MODELS = ("llama3.1-8b", "qwen3-32b", "llama3.1-70b", "gpt-oss-120b", "deepseek-v3")
DEVICES = ("h200", "h100", "b200", "a100-80gb", "mi300x")
#: KV formats that are told where the engine runs them on the device for the model
FORMATS = ("fp16", "fp8", "nvfp4", "int4_per_token_head")
#: prompt and answer, in tokens, of three kinds of use
LENGTHS = {
    "chat: 1,024 in, 1,024 out": (1024, 1024),
    "documents: 8,192 in, 1,024 out": (8192, 1024),
    "long documents: 32,768 in, 512 out": (32768, 512),
}

#: requests at once that are tried, and as many as fit
BATCHES = tuple(2**k for k in range(12))


def tables(models: Sequence[str] = MODELS, devices: Sequence[str] = DEVICES, progress: Progress | None = None) -> Any:
    """Model -> device -> lengths -> format -> its drop of scores and rise of perplexity, the most requests that so many
    devices hold at once, and the designs on its front: devices by tp, requests, token/s a user, token/s a device, TTFT
    in s, ends of the 80 % interval of token/s a device. JSON-ready."""
    pairs = [(model, device) for model in models for device in devices]
    answers: dict[str, Any] = {}
    with progress(pairs, label="answers", length=len(pairs)) if progress else nullcontext(pairs) as shown:
        for model, device in shown:
            usual = Workload()
            run = engine_formats.compared(catalog.device(device), catalog.model(model), usual)
            designs = [d for name in FORMATS for d in run if d.name == name]
            here = {words: {d.name: _format(d, *lengths) for d in designs} for words, lengths in LENGTHS.items()}
            answers.setdefault(model, {})[device] = here
    return answers


def _format(design: Candidate, input_tokens: int, output_tokens: int) -> dict[str, Any]:
    work = Workload(input_tokens=input_tokens, output_tokens=output_tokens)
    answer = interactivity.interactivity([design], work, batches=BATCHES)
    holds: dict[int, int] = {}
    for row in answer.rows:
        holds[row["tp"]] = max(holds.get(row["tp"], 0), row["batch"])
    first = answer.rows[0] if answer.rows else None
    drop, rise = ("-", "-") if first is None else (quality.drop_text(first), quality.rise_text(first))
    rows = [_row(row) for own_rows in answer.fronts.values() for row in own_rows]
    return {"drop": drop, "rise": rise, "holds": list(holds.items()), "rows": rows}


def _row(row: dict[str, Any]) -> list[float]:
    user, device = interactivity.speeds(row)
    low, high, _ = interactivity.interval(row)
    numbers = (user, device, row["ttft_s"], low, high)
    return [row["tp"], row["batch"], *(float(f"{number:.4g}") for number in numbers)]


def page(numbers: Any) -> str:
    """The page for these tables, which expects plotly.min.js beside it."""
    data = {"tables": numbers, "lengths": list(LENGTHS)}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return web_page.render(
        "answers.html",
        "dse.report",
        title="Which KV format, on how many devices?",
        data=web_page.trusted(text),
        js_beside=True,
    )
