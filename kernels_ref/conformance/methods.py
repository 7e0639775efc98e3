"""Which check belongs to which golden file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernels_ref.conformance import baselines, kivi, oaken, rows, sinkq
from kernels_ref.conformance.compare import Pair
from kernels_ref.conformance.vectors import Vectors


@dataclass(frozen=True)
class Method:
    """A family of golden files: its name in reports, and the check that yields what is compared.

    `informative_too`: also compared where the file is informative. `unread`: why arrays are left out, if some are.
    """

    label: str
    check: Callable[[Vectors], Iterator[Pair]]
    informative_too: bool = False
    unread: str = "no check asks for it"


#: by the beginning of the file's name; the longest that fits counts
METHODS = {
    "oaken_": Method("Oaken, artifact", oaken.artifact),
    "oaken_nonfinite": Method("Oaken, artifact", oaken.artifact, informative_too=True),
    "oakenpaper_": Method("Oaken, paper", oaken.paper),
    "kivi_": Method("KIVI", kivi.kivi),
    "sinkq_": Method("SinkQ", sinkq.sinkq),
    "nf4_": Method("NF4", rows.nf4),
    "base_qserve": Method("QServe", baselines.qserve),
    "base_atom": Method("Atom", baselines.atom, unread="codes of activations, not of a cache"),
    "base_tender": Method("Tender", baselines.tender),
    "base_kvquant": Method("KVQuant (artifact)", baselines.kvquant, informative_too=True),
    "hf_quanto": Method("Quanto", baselines.quanto),
    "base_int8_pertoken": Method("INT8 per token", rows.int8),
    "fp8_tables": Method("FP8 E4M3, E5M2", rows.fp8),
    "hf_fp8": Method("FP8 (transformers)", rows.hf_fp8, informative_too=True),
}

#: files whose values no method here promises, and why; some are compared all the same
INFORMATIVE = {
    "nf4_nonfinite": "NaN and infinities are implementation-defined in bitsandbytes, refused or replaced here",
    "oaken_nonfinite_d128": "NaN and infinities make the artifact's whole tensor NaN, are refused or replaced here",
    "hf_hqq": "HQQ optimises scale and zero iteratively; not a method of this package",
    "hf_fp8": "one FP32 scale per tensor, frozen at the first update",
    "base_kvquant": "what the artifact runs under this name is not the published method",
}


def method_of(stem: str) -> Method | None:
    """The method whose files are called like `stem`; None where there is none."""
    fitting = [prefix for prefix in METHODS if stem.startswith(prefix)]
    return METHODS[max(fitting, key=len)] if fitting else None
