"""What the page asks for: the fields and their ranges, the checked URL, and the answer to a request."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from dse import catalog, listing, plan, point, present, quantizers, sweep, token_policies, workload
from dse.errors import MAX_LINE, InputError, clean, show
from dse.measurements import CLOSED
from dse.trace import Trace
from dse.workload import Workload

#: batches of the curve
CURVE = tuple(2**i for i in range(9))
#: numbers in a URL: longer than any limit, shorter than what could be slow
_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
_MAX_NAME = 40


@dataclass(frozen=True)
class Request:
    """The state of the page, which is the state in its URL; each field is a widget's key."""

    device: str = "a100-80gb"
    model: str = "llama2-7b"
    quantizer: str = "oaken"
    parameters: str = ""
    batch: int = 64
    input: int = 1024
    output: int = 1024
    admission: str = "reserve"
    weights_bits: int = 16
    model_kind: str = "auto"
    tokens: str = "full"

    @property
    def quantizer_text(self) -> str:
        """The quantizer as the command line takes it."""
        return f"{self.quantizer}:{self.parameters}" if self.parameters.strip() else self.quantizer

    @property
    def work(self) -> Workload:
        """The workload; raises InputError."""
        admission: Any = self.admission
        kind: Any = self.model_kind
        return Workload(
            self.batch, self.input, self.output, admission, weights_bits=self.weights_bits, model_kind=kind,
            tokens=self.tokens,
        )  # fmt: skip

    def key(self) -> tuple[tuple[str, Any], ...]:
        """The request as plain values, for the cache."""
        return tuple(asdict(self).items())


DEFAULT = Request()

#: fields chosen from a list -> the choices
CHOICES: dict[str, Callable[[], Sequence[str | int]]] = {
    "device": lambda: list(catalog.device_files()),
    "model": lambda: list(catalog.model_files()),
    "quantizer": lambda: list(quantizers.FAMILIES),
    "admission": lambda: ["reserve", "paged"],
    "weights_bits": lambda: list(workload.WEIGHT_BITS),
    "model_kind": lambda: ["auto", "ideal"],
    "tokens": lambda: list(token_policies.FAMILIES),
}
#: fields of whole numbers -> smallest, largest
RANGES = {
    "batch": (1, workload.MAX_BATCH),
    "input": (1, workload.MAX_INPUT_TOKENS),
    "output": (1, workload.MAX_OUTPUT_TOKENS),
}


def family_defaults(name: str) -> str:
    """A family's parameters with their defaults, as one would write them; "-" where it has none."""
    return next(row["parameters"] for row in listing.list_quantizers() if row["name"] == name)


def check_query(query: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], list[str]]:
    """The entries of a URL that can be used, and one line for each that cannot, naming the key and its limit."""
    good: dict[str, str] = {}
    problems = []
    for key in sorted(query, key=lambda key: key == "parameters"):  # after the quantizer they belong to
        problem = _problem(key, query[key], good.get("quantizer", DEFAULT.quantizer))
        if problem:
            problems.append(clean(problem, MAX_LINE))
        else:
            good[key] = query[key][-1]
    return good, problems


def _problem(key: str, values: Sequence[str], family: str) -> str:
    if key not in asdict(DEFAULT):
        return f"{clean(key, _MAX_NAME)}: unknown; known: {', '.join(asdict(DEFAULT))}"
    if len(values) != 1:
        return f"{key}: given {len(values):,} times: must be given once"
    text = values[0]
    if key in CHOICES:
        known = [str(choice) for choice in CHOICES[key]()]
        return "" if text in known else f"{key} = {show(text)}: must be one of {', '.join(known)}"
    if key in RANGES:
        low, high = RANGES[key]
        if _NUMBER.fullmatch(text) and low <= int(text) <= high:
            return ""
        return f"{key} = {show(text)}: must be a whole number from {low:,} to {high:,}"
    try:
        quantizers.parse(f"{family}:{text}")
    except InputError as error:
        return f"parameters: {error}"
    return ""


def command(request: Request) -> str:
    """The command line that prints what the page shows."""
    words = ["dse", "point", "--device", request.device, "--model", request.model]
    words += ["--quantizer", quantizers.parse(request.quantizer_text).name, "--batch", str(request.batch)]
    words += ["--input", str(request.input), "--output", str(request.output)]
    words += ["--admission", request.admission, "--weights-bits", str(request.weights_bits)]
    words += ["--model-kind", request.model_kind] if request.model_kind != DEFAULT.model_kind else []
    words += ["--tokens", request.tokens] if request.tokens != DEFAULT.tokens else []
    return shlex.join(words)


@dataclass(frozen=True)
class Answer:
    """Results of one request by name, the explanation of each asked for, and all of it as text."""

    result: dict[str, Any]
    explanations: dict[str, str]
    text: str


def answer(request: Request, explained: Sequence[str]) -> Answer:
    """Evaluate one request. Raises InputError."""
    device = catalog.device(request.device)
    quantizer = CLOSED.quantizer(request.quantizer_text)
    kv = plan.build(catalog.model(request.model), quantizer, quantizer)
    trace = Trace(keep=True)
    result = point.evaluate(device, kv, request.work, trace)
    explanations = {
        name: present.explanation_text(present.explain(name, result, trace, device, kv.model)) for name in explained
    }
    return Answer(result, explanations, present.point_text(result, device, kv))


def curve(request: Request) -> pd.DataFrame:
    """The request, and the same without quantization, at every batch of `CURVE` and at its own. Raises InputError."""
    names = dict.fromkeys((quantizers.FAMILIES["fp16"].name, quantizers.parse(request.quantizer_text).name))
    batches = sorted({*CURVE, request.batch})
    return sweep.grid(
        [request.device], [request.model], list(names), batches, [request.input], [request.output], request.work
    )
