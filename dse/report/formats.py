"""The report's first section: which KV format pays on the first device and model asked for, else on those of today."""

from collections.abc import Sequence

from dse.core.errors import DseError
from dse.questions import systems
from dse.questions.formats import Formats, formats
from dse.questions.systems import ReportRequest
from dse.specs import catalog
from dse.specs.workload import Workload

#: what the section is about where the report is asked for nothing of its own
DEVICE, MODEL, BATCH, INPUT_TOKENS = "h200", "qwen3-32b", 64, 8192


def batch_of(request: ReportRequest) -> int:
    """The batch of the section: 64 where the report has it, else its largest."""
    return BATCH if BATCH in request.batches else max(request.batches)


def input_of(request: ReportRequest, has_input: bool) -> int:
    """Prompt tokens of the section: those asked for, else 8,192."""
    return request.input_tokens if has_input else INPUT_TOKENS


def answer(
    request: ReportRequest, devices: Sequence[str] | None, models: Sequence[str] | None, has_input: bool
) -> tuple[Formats | None, str]:
    """The answer, or why there is none: a report of other devices is written even so.

    `devices` and `models` are those asked for by name, of which the first counts; `has_input`: prompts were asked for.
    """
    device = catalog.device(devices[0] if devices else DEVICE)
    model = request.models[0] if models else catalog.model(MODEL)
    try:
        work = Workload(
            batch=batch_of(request),
            input_tokens=input_of(request, has_input),
            output_tokens=request.output_tokens,
            admission=systems.admission_of(device),
            model_kind=request.model_kind,
            stack=request.stack,
            **request.deployment,
        )
        return formats(device, model, work, bits=request.bits), ""
    except DseError as error:
        return None, error.lines()[0]
