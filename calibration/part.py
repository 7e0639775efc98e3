"""A fitted part of a device file, whatever was fitted: what its block, its report and its JSON are made of."""

from dataclasses import dataclass
from typing import Any

from dse.calibrate.fit import MAX_ERROR

#: class of rows -> mean error, 90th percentile, rows
Errors = dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class FittedPart:
    """Parameters in SI units, their place in the file, rows fitted, and errors on rows that the fit did not see."""

    part: str
    parameters: dict[str, float]
    n_points: int
    errors: Errors
    #: who measured what
    source: str

    @property
    def trusted(self) -> bool:
        """False where the parameters should not be used."""
        return self.errors["all"]["mean"] <= MAX_ERROR

    def as_dict(self) -> dict[str, Any]:
        """The part as `--json` prints it."""
        return {
            "part": self.part,
            "trusted": self.trusted,
            "parameters": self.parameters,
            "n_points": self.n_points,
            "errors": self.errors,
            "fitted_on": self.source,
        }
