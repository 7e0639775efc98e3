"""Claims of the papers beside computed values.

`evaluate_all()` gives a `ClaimResult` per row of dse/data/claims.csv. A document is a file with one function per claim
or family of claims; every function computes ours from specs, plans, design points and formulas.
"""

from dse.validate.claims import nqkv, oaken, oaken_speed, pim, sinkq, textbook
from dse.validate.claims.core import (
    FUNCTIONS,
    INPUTS,
    MODEL_PERCENT,
    Claim,
    ClaimResult,
    Modeled,
    Ours,
    Relation,
    Verdict,
    agrees,
    check,
    evaluate,
    evaluate_all,
    load,
    table,
)

__all__ = [
    "FUNCTIONS",
    "INPUTS",
    "MODEL_PERCENT",
    "Claim",
    "ClaimResult",
    "Modeled",
    "Ours",
    "Relation",
    "Verdict",
    "agrees",
    "check",
    "evaluate",
    "evaluate_all",
    "load",
    "nqkv",
    "oaken",
    "oaken_speed",
    "pim",
    "sinkq",
    "table",
    "textbook",
]
