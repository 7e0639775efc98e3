"""Results of a ring of devices, of the whole batch; the decode step is that of the last token."""

from dataclasses import replace

from dse.model.formulas import ring
from dse.model.results import RESULTS
from dse.model.results.declare import NUMBER, WHOLE, Result, TextLine, how

#: sections of a ring's text
SECTIONS = _CONTEXT, _PROMPT, _STEP = "Context", "Prompt", "Decode step, last token"
_HIDING, _BLOCK = ring.ring_hiding_block_tokens.equation, "as of one device whose context is a block"
_BUFFERS = f"2 * batch * block_tokens * ({ring.ring_buffer_elements.equation})"


def _shared(*names: str) -> list[Result]:
    """Results of one device that say the same of a ring and have no line in its text."""
    return [replace(RESULTS[name], lines=()) for name in names]


def _shown(name: str, section: str, place: int, words: str, equation: str, unit: str = "") -> Result:
    """Declare a result that the text of a ring shows where it has a value; one without a unit is of one device, too."""
    declared = Result(name=name, unit=unit, dtype=WHOLE if unit == "token" else NUMBER, title=words)
    line = TextLine(section, place, words, lambda results: results[name] is not None)
    derivation = how(equation, "docs/explanation/model.md, Ring attention")
    return replace(declared if unit else RESULTS[name], lines=(line,), explain=lambda _: derivation)


_RESULTS = (
    *_shared("device", "model", "quantizer", "model_kind"),
    Result(name="n_ring", unit="device", dtype=WHOLE, title="devices of the ring", chosen="given"),
    *_shared("batch", "input_tokens", "output_tokens"),
    _shown("block_tokens", _CONTEXT, 3, "block of a device", ring.ring_block_tokens.equation, "token"),
    _shown("link_bytes_per_s", _PROMPT, 4, "link, one direction", "--link, else the device's, else PCIe's", "B/s"),
    _shown("max_context_tokens", _CONTEXT, 1, "longest, over the ring", "n_ring * the longest block"),
    _shown("max_context_tokens_alone", _CONTEXT, 2, "longest, on one device", "without buffers of a ring", "token"),
    *_shared("feasible", "infeasible_reason"),
    _shown("kv_bytes_per_device", _CONTEXT, 4, "keys and values of a device", "batch * size(block_tokens)", "B"),
    _shown("buffer_bytes_per_device", _CONTEXT, 5, "blocks passing through a device", _BUFFERS, "B"),
    _shown("hiding_block_tokens", _PROMPT, 3, "block that hides its transfer", _HIDING, "token"),
    _shown("prefill_s", _PROMPT, 1, "prompt", "own block + sum over hops of max(0, transfer - compute) + compute"),
    _shown("exposed_transfer_s", _PROMPT, 2, "of it waiting for blocks", "sum of max(0, transfer - compute)", "s"),
    _shown("linear_s", _STEP, 1, "linear layers", _BLOCK),
    _shown("attention_s", _STEP, 2, "attention over a block", _BLOCK),
    _shown("quantize_s", _STEP, 3, "", _BLOCK),
    _shown("dequantize_s", _STEP, 4, "", _BLOCK),
    _shown("pass_s", _STEP, 5, "passing queries and results", f"{ring.ring_pass_s.equation}, over layers", "s"),
    _shown("decode_step_s", _STEP, 6, "decode step", f"{_BLOCK}, and pass_s"),
    *_shared("assumptions"),
)
#: every result of a ring by name, in the order of `dse ring --json`
RING = {result.name: result for result in _RESULTS}
