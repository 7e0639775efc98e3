"""Claims of designs whose memory computes attention: AttAcc (ASPLOS 2024) and NeuPIMs (ASPLOS 2024), at peak rates.

Nothing is fitted to them. A step here is products, then attention; both papers also overlap the two. What that could
bring at most is said beside each.
"""

from typing import Any

from dse.validate.claims.core import Modeled, claim
from dse.validate.claims.designs import results_at

#: prompts and outputs of the simulators' examples and around them
LENGTHS = (128, 512, 2048)
#: requests that wait: more than fit at any of these lengths
MANY = 512


def _overlapped_tokens_per_s(result: dict[str, Any]) -> float:
    """Throughput if attention hid behind the products, or they behind it, in every step."""
    hidden_s = min(result["attention_s"], result["linear_s"])
    total_s = result["total_s"] - result["n_waves"] * result["output_tokens"] * hidden_s
    return float(result["batch"] * result["output_tokens"] / total_s)


def _exchanged(result: dict[str, Any]) -> str:
    return f"{result['collective_s'] / result['decode_step_s']:.0%} of a step are exchanges over links"


@claim("attacc-throughput")
def _attacc() -> Modeled:
    """Eight A100s with AttAcc beside each, 160 GiB together, over sixteen A100s of 80 GiB: the same memory."""

    def pair(prompt: int, output: int) -> tuple[dict[str, Any], dict[str, Any]]:
        def reached(name: str, tp: int) -> dict[str, Any]:
            return results_at(name, "opt-175b", batch=MANY, input_tokens=prompt, output_tokens=output, tp=tp)

        return reached("attacc-a100:memory_capacity=160 GiB", 8), reached("attacc-a100:pim_bandwidth=3352 GB/s", 16)

    rate = "throughput_tokens_per_s"
    pairs = {(prompt, output): pair(prompt, output) for prompt in LENGTHS for output in LENGTHS}
    best = max(pairs, key=lambda lengths: pairs[lengths][0][rate] / pairs[lengths][1][rate])
    pim, other = pairs[best]
    return Modeled(
        pim[rate] / other[rate],
        f"largest at {best[0]:,} in, {best[1]:,} out: sixteen GPUs read weights, and compute prompts, twice as fast as "
        f"eight; {_overlapped_tokens_per_s(pim) / other[rate]:.2f} if all attention hid behind products, which is not "
        f"modelled; {_exchanged(pim)}",
    )


@claim("neupims-throughput")
def _neupims() -> Modeled:
    """NeuPIMs over the same NPU with plain memory, four devices, GPT-3 13B's shape."""

    def reached(name: str, batch: int = 256) -> dict[str, Any]:
        return results_at(name, "opt-13b", batch=batch, input_tokens=256, output_tokens=256, tp=4)

    rate = "throughput_tokens_per_s"
    pim, half, other = reached("neupims"), reached("neupims", 128), reached("neupims:pim_bandwidth=1024 GB/s")
    ms = 1e3
    return Modeled(
        pim[rate] / other[rate],
        f"batch 256, 256 in, 256 out; {_overlapped_tokens_per_s(pim) / other[rate]:.2f} if all attention hid behind "
        f"products. Halves of a batch in turn, as NeuPIMs has them, would not pay here: products of two halves take "
        f"{2 * half['linear_s'] * ms:.1f} ms, as each reads the weights, those of the whole and its attention "
        f"{(pim['linear_s'] + pim['attention_s']) * ms:.1f}; {_exchanged(pim)}; banks' bandwidth assumed",
    )
