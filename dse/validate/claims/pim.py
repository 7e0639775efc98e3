"""Claims of designs whose memory computes attention: AttAcc (ASPLOS 2024) and NeuPIMs (ASPLOS 2024), at peak rates.

Nothing is fitted to them. A step is products, then attention of the whole batch, or products and attention of its two
halves in turn, as both papers have it, whichever takes less time; what overlap could bring at most is said beside each.
"""

from typing import Any

from dse.model.formulas import scheduling
from dse.specs import catalog
from dse.validate.claims.core import Modeled, claim
from dse.validate.claims.designs import results_at

#: prompts and outputs of the simulators' examples and around them
LENGTHS = (128, 512, 2048)
#: requests that wait: more than fit at any of these lengths
MANY = 512


def _tokens_per_s(result: dict[str, Any], step_s: float) -> float:
    """Throughput with decode steps of such a length."""
    total_s = result["total_s"] + result["n_waves"] * result["output_tokens"] * (step_s - result["decode_step_s"])
    return float(result["batch"] * result["output_tokens"] / total_s)


def _overlapped_tokens_per_s(result: dict[str, Any]) -> float:
    """Throughput if attention hid behind the products, or they behind it, in every step."""
    return _tokens_per_s(result, result["decode_step_s"] - min(result["attention_s"], result["linear_s"]))


def _in_turn_s(name: str, model: str, result: dict[str, Any], **work: Any) -> float:
    """Seconds of a decode step whose halves of the batch take turns; exchanges between devices follow products."""
    half = results_at(name, model, batch=max(result["running_batch"] // 2, 1), **work)
    products_s = half["decode_step_s"] - half["attention_s"]
    return scheduling.in_turn_s(products_s, half["attention_s"], catalog.model(model).n_layers)


def _exchanged(result: dict[str, Any]) -> str:
    return f"{result['collective_s'] / result['decode_step_s']:.0%} of a step are exchanges over links"


def _turns(result: dict[str, Any], in_turn_s: float) -> str:
    """Both schedules, in milliseconds of a step."""
    order_s, ms = result["decode_step_s"], 1e3
    pays = "pay" if in_turn_s < order_s else "do not pay: each half reads all weights"
    turns = f"{in_turn_s * ms:.1f} with halves of the batch in turn, which {pays}"
    return f"a step takes {order_s * ms:.1f} ms in order, {turns}"


@claim("attacc-throughput")
def _attacc() -> Modeled:
    """Eight A100s with AttAcc beside each, 160 GiB together, over sixteen A100s of 80 GiB: the same memory."""
    name, rate = "attacc-a100:memory_capacity=160 GiB", "throughput_tokens_per_s"

    def pair(prompt: int, output: int) -> tuple[dict[str, Any], dict[str, Any], float]:
        work: dict[str, Any] = {"input_tokens": prompt, "output_tokens": output}
        pim = results_at(name, "opt-175b", batch=MANY, tp=8, **work)
        other = results_at("attacc-a100:pim_bandwidth=3352 GB/s", "opt-175b", batch=MANY, tp=16, **work)
        return pim, other, _in_turn_s(name, "opt-175b", pim, tp=8, **work)

    def best_of(pim: dict[str, Any], in_turn_s: float) -> float:
        return _tokens_per_s(pim, min(in_turn_s, pim["decode_step_s"]))

    pairs = {(prompt, output): pair(prompt, output) for prompt in LENGTHS for output in LENGTHS}
    gains = {lengths: best_of(pim, in_turn_s) / other[rate] for lengths, (pim, other, in_turn_s) in pairs.items()}
    best = max(pairs, key=gains.__getitem__)
    pim, other, in_turn_s = pairs[best]
    return Modeled(
        gains[best],
        f"largest at {best[0]:,} in, {best[1]:,} out: sixteen GPUs read weights, and compute prompts, twice as fast as "
        f"eight; {_turns(pim, in_turn_s)} ({pim[rate] / other[rate]:.2f} in order); "
        f"{_overlapped_tokens_per_s(pim) / other[rate]:.2f} if all attention hid behind products; {_exchanged(pim)}",
    )


@claim("neupims-throughput")
def _neupims() -> Modeled:
    """NeuPIMs over the same NPU with plain memory, four devices, GPT-3 13B's shape."""
    work: dict[str, Any] = {"input_tokens": 256, "output_tokens": 256, "tp": 4}

    def reached(name: str) -> dict[str, Any]:
        return results_at(name, "opt-13b", batch=256, **work)

    rate = "throughput_tokens_per_s"
    pim, other = reached("neupims"), reached("neupims:pim_bandwidth=1024 GB/s")
    in_turn_s = _in_turn_s("neupims", "opt-13b", pim, **work)
    alone = [result["linear_s"] + result["attention_s"] for result in (other, pim)]
    return Modeled(
        _tokens_per_s(pim, min(in_turn_s, pim["decode_step_s"])) / other[rate],
        f"batch 256, 256 in, 256 out; {_turns(pim, in_turn_s)}; {_overlapped_tokens_per_s(pim) / other[rate]:.2f} if "
        f"all attention hid behind products; {_exchanged(pim)}, which the authors' simulator has not, nor prompts: of "
        f"products and attention alone {alone[0] / alone[1]:.2f}; banks' bandwidth assumed",
    )
