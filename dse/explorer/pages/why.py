"""Why a result is what it is: where the time goes, quantization errors, every number with its sources, and what-ifs."""

from dse.core.field import Field
from dse.explorer import state, widgets
from dse.explorer.bench import Bench
from dse.explorer.why import error, form, numbers, time, what_if

PAGE = "why"
TAB = Field(
    name="why",
    label="What is shown",
    default="time",
    choices={
        "time": "Where the time goes",
        "error": "Quantization error",
        "numbers": "Every number",
        "what-if": "What if",
    },
)
#: what the page asks for beside the designs and the workload
FIELDS = (TAB, *form.FIELDS, numbers.NUMBER, *what_if.FIELDS)


def render(bench: Bench) -> None:
    """Draw the tab that is chosen, and nothing of the others."""
    tab, address = widgets.tabs(TAB), state.address(PAGE, bench.values)
    answered = bench.answered
    if tab == "error":
        error.show(bench, address)
    elif not answered:
        widgets.lines(["No design has a result: the line beside its fields says what to change."])
    else:
        current = bench.current if bench.current in answered else answered[0]
        if tab == "numbers":
            numbers.show(answered, current)
        elif tab == "what-if":
            what_if.show(bench, current, address)
        else:
            time.show(answered, current, address)
