"""The report's first section: which KV format pays on the first device and model asked for, else on those of today."""

from dse.core.errors import DseError
from dse.questions import systems
from dse.questions.formats import Formats, formats
from dse.questions.systems import ReportRequest
from dse.specs import catalog
from dse.specs.workload import ASKED, Workload

#: what the section is about where the report is asked for nothing of its own
DEVICE, MODEL, BATCH, INPUT_TOKENS = "h200", "qwen3-32b", 64, 8192


def batch_of(request: ReportRequest) -> int:
    """The batch of the section: 64 where the report has it, else its largest."""
    return BATCH if BATCH in request.batches else max(request.batches)


def input_of(request: ReportRequest) -> int:
    """Prompt tokens of the section: those asked for, else 8,192."""
    return INPUT_TOKENS if request.input_tokens == ASKED["input_tokens"].default else request.input_tokens


def answer(request: ReportRequest) -> tuple[Formats | None, str]:
    """The answer for the first device and model asked for by name, or why there is none: a report of other devices is
    written even so."""
    device, model = catalog.device(request.first_device or DEVICE), catalog.model(request.first_model or MODEL)
    try:
        work = Workload(
            batch=batch_of(request),
            input_tokens=input_of(request),
            output_tokens=request.output_tokens,
            admission=systems.admission_of(device),
            model_kind=request.model_kind,
            stack=request.stack,
            **request.deployment,
        )
        return formats(device, model, work, bits=request.bits), ""
    except DseError as error:
        return None, error.lines()[0]
