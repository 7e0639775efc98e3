"""Memory that a server keeps beside weights and the KV cache, by software stack, each number with its source.

`dse point ... --explain free_bytes` shows them in use; docs/explanation/model.md, Memory of a server, has the rules.
"""

from dataclasses import dataclass

from dse.specs.quantity import Quantity

#: how a server takes the share that it may use: of what the driver reports, for all that it keeps; of the same, for
#: weights and keys and values alone; of what is left beside all else, for keys and values
WHOLE, STATIC, LEFT = "whole", "static", "left"


@dataclass(frozen=True)
class Server:
    """The memory of a server of one device, and what communication of several adds."""

    rule: str
    #: tokens of the largest batch of prompt tokens
    prompt_budget: Quantity
    #: rows of logits in the largest step, and bytes of a logit with its copies
    sequences: Quantity
    logit: Quantity
    graphs: Quantity
    #: context of the device, workspaces of libraries
    buffers: Quantity
    #: buffers of communication, where several devices serve together
    communication: Quantity

    def buffer_bytes(self, n_devices: int) -> int:
        """Bytes of context, workspaces and buffers on each of `n_devices`."""
        return self.buffers.count + (self.communication.count if n_devices > 1 else 0)

    def quantities(self) -> dict[str, Quantity]:
        """Every number by name."""
        return {
            "prompt_budget": self.prompt_budget,
            "sequences": self.sequences,
            "logit": self.logit,
            "graphs": self.graphs,
            "buffers": self.buffers,
            "communication": self.communication,
        }


_LOG = "start-up log of vLLM 0.31.0, Llama-3.1-8B on an A100 80 GB"
_TOKENS = Quantity(
    value=8192,
    unit="token",
    kind="published",
    source="vLLM: max_num_batched_tokens of a server on GPUs of 70 GiB or more (2,048 on smaller ones in old releases)",
)
_SEQUENCES = Quantity(
    value=1024, unit="1", kind="published", source="vLLM: max_num_seqs on GPUs of 70 GiB or more (256 on smaller ones)"
)
_LOGIT = Quantity(
    value=12,
    unit="B",
    kind="derived",
    source=f"FP32 logits and two copies while sampling; {_LOG}: 1.44 GiB of activations, 11.8 B for each of 1,024 rows",
)
_GRAPHS = Quantity(
    value=0.5,
    unit="GiB",
    kind="assumed",
    source="assumed: logs of vLLM 0.10 to 0.31 say 0.2 to 0.7 for models of 8B, 2.4 to 4.1 for the largest under tp",
)
_COMMUNICATION = Quantity(
    value=0.75,
    unit="GiB",
    kind="assumed",
    source="assumed: 0.34 to 0.38 for NCCL (aiconfigurator-core 0.12.0, system files); logs of vLLM under tp say 0.7 "
    "to 1.4 more than on one device",
)

#: by stack; a stack that is not here is taken to be as vLLM
SERVERS = {
    "vllm": Server(
        WHOLE,
        prompt_budget=_TOKENS,
        sequences=_SEQUENCES,
        logit=_LOGIT,
        graphs=_GRAPHS,
        buffers=Quantity(
            value=0.26,
            unit="GiB",
            kind="measured",
            source=f"{_LOG}: 15.26 GiB consumed, of which weights 15.0 (0.07 to 0.26 in others)",
        ),
        communication=_COMMUNICATION,
    ),
    "sglang": Server(
        STATIC,
        prompt_budget=Quantity(
            value=8192,
            unit="token",
            kind="published",
            source="SGLang: chunked_prefill_size on GPUs of 60 to 160 GiB (4,096 below, 16,384 above)",
        ),
        sequences=_SEQUENCES,
        logit=_LOGIT,
        graphs=_GRAPHS,
        buffers=Quantity(
            value=0.5,
            unit="GiB",
            kind="assumed",
            source="assumed: the 512 MiB that SGLang sets aside for other data as it chooses its share",
        ),
        communication=_COMMUNICATION,
    ),
    "trtllm": Server(
        LEFT,
        prompt_budget=Quantity(value=8192, unit="token", kind="published", source="TensorRT-LLM: max_num_tokens"),
        sequences=_SEQUENCES,
        logit=_LOGIT,
        graphs=_GRAPHS,
        buffers=Quantity(
            value=0.54,
            unit="GiB",
            kind="assumed",
            source="assumed: 551 MiB of context and libraries (aiconfigurator-core 0.12.0, comment of its files)",
        ),
        communication=_COMMUNICATION,
    ),
}
#: the server where no stack, or one without numbers of its own, is named
DEFAULT = "vllm"


def of(stack: str | None) -> Server:
    """The server of a software stack."""
    return SERVERS.get(stack or DEFAULT, SERVERS[DEFAULT])
