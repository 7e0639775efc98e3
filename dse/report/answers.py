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
from dse.model import quality, uncertainty
from dse.questions import engine_formats, interactivity, layouts
from dse.questions.demand import AtOnce, Demand
from dse.questions.grid import Choices, grid_of
from dse.questions.limits import LIMITS
from dse.specs import catalog
from dse.specs.deployment import USUAL_SIZES
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
    devices hold at once, and the designs on its front: layout, devices, requests, token/s a user, token/s a device,
    TTFT in s, ends of the 80 % interval of token/s a device, upper ends of TPOT and TTFT in s. JSON-ready."""
    pairs = [(model, device) for model in models for device in devices]
    answers: dict[str, Any] = {}
    with progress(pairs, label="answers", length=len(pairs)) if progress else nullcontext(pairs) as shown:
        for model, device in shown:
            usual = Workload()
            run = engine_formats.compared(catalog.device(device), catalog.model(model), usual)
            names = tuple(name for name in FORMATS if name in {design.name for design in run})
            here = {words: _formats(device, model, names, *lengths) for words, lengths in LENGTHS.items()}
            answers.setdefault(model, {})[device] = here
    return answers


def _formats(
    device: str, model: str, names: tuple[str, ...], input_tokens: int, output_tokens: int
) -> dict[str, dict[str, Any]]:
    demand, work = Demand(AtOnce(None), {}), Workload(input_tokens=input_tokens, output_tokens=output_tokens)
    choices = Choices(engines=(None,), quantizers=names, most=USUAL_SIZES[-1])
    found = grid_of({device: catalog.device(device)}, catalog.model(model), work, demand, choices, {})
    answer = interactivity.interactivity(found, demand, batches=BATCHES)
    return {name: _format([row for row in answer.rows if row["system"] == name]) for name in names}


def _format(designs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    holds: dict[int, int] = {}
    for row in designs:
        holds[row["n_devices"]] = max(holds.get(row["n_devices"], 0), row["batch"])
    drop, rise = (quality.drop_text(designs[0]), quality.rise_text(designs[0])) if designs else ("-", "-")
    rows = [_row(row) for row in interactivity.front(designs)]
    return {"drop": drop, "rise": rise, "holds": sorted(holds.items()), "rows": rows}


def _row(row: dict[str, Any]) -> list[Any]:
    user, device = interactivity.speeds(row)
    low, high, _ = interactivity.interval(row)
    latest = [uncertainty.ends(row, name)[1] for name in LIMITS]
    numbers = (user, device, row["ttft_s"], low, high, *latest)
    return [layouts.words(row) or "tp 1", row["n_devices"], row["batch"], *(float(f"{n:.4g}") for n in numbers)]


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
