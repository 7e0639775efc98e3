"""Claims of designs whose memory computes attention: AttAcc (ASPLOS 2024) and NeuPIMs (ASPLOS 2024), at peak rates.

Nothing is fitted to them. A step here is products, then attention; both papers also overlap the two over parts of a
batch, which is not modelled, so that gains come out low.
"""

from dse.validate.claims.core import Modeled, claim
from dse.validate.claims.designs import tokens_per_s

#: prompts and outputs of the simulators' examples and around them
LENGTHS = (128, 512, 2048)
#: requests that wait: more than fit at any of these lengths
MANY = 512


@claim("attacc-throughput")
def _attacc() -> Modeled:
    """Eight A100s with AttAcc beside each, 160 GiB together, over sixteen A100s of 80 GiB: the same memory."""

    def ratio(prompt: int, output: int) -> float:
        def reached(name: str, tp: int) -> float:
            return tokens_per_s(name, "opt-175b", batch=MANY, input_tokens=prompt, output_tokens=output, tp=tp)

        return reached("attacc-a100:memory_capacity=160 GiB", 8) / reached("attacc-a100:pim_bandwidth=3352 GB/s", 16)

    ratios = {(prompt, output): ratio(prompt, output) for prompt in LENGTHS for output in LENGTHS}
    best = max(ratios, key=lambda lengths: ratios[lengths])
    why = "sixteen GPUs read weights, and compute prompts, twice as fast as eight; overlap of both is not modelled"
    return Modeled(ratios[best], f"largest at {best[0]:,} in, {best[1]:,} out: {why}")


@claim("neupims-throughput")
def _neupims() -> Modeled:
    """NeuPIMs over the same NPU with plain memory, four devices, GPT-3 13B's shape."""

    def reached(name: str) -> float:
        return tokens_per_s(name, "opt-13b", batch=256, input_tokens=256, output_tokens=256, tp=4)

    ratio = reached("neupims") / reached("neupims:pim_bandwidth=1024 GB/s")
    why = "NeuPIMs multiplies and attends at the same time over halves of a batch, which is not modelled"
    return Modeled(ratio, f"batch 256, 256 in, 256 out: {why}; banks' bandwidth assumed")
