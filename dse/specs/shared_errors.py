"""Correlations of the errors of two predicted servers, by what they differ in.

Fitted by calibration/shared_errors.py to pairs of measured servers of one model and workload, each predicted by a fit
that its model was left out of. docs/explanation/model.md, How sure.
"""

from typing import Annotated

from pydantic import Field

from dse.specs.stack import Spec

Correlation = Annotated[float, Field(ge=0.0, lt=1.0)]


class Age(Spec):
    """Distance of servers of two releases of one software by the weeks between the releases, all else equal."""

    #: half of the 80 % interval of the logarithm a week apart; grows with the root of the weeks
    week: float = Field(gt=0.0, lt=1.0)
    #: weeks between the releases of the pairs, at most
    most_weeks: float = Field(gt=0.0)
    #: share of the pairs inside of their 80 %, each by a fit that its model was left out of
    inside: float = Field(ge=0.0, le=1.0)
    #: pairs of two releases
    n_points: int = Field(ge=1)
    source: str = Field(min_length=1, max_length=300)


class SharedErrors(Spec):
    """Correlations of the logarithms of measured over predicted times of two servers that differ in one thing; where
    they differ in several, of the product."""

    #: number of devices; how attention or experts are laid out over them
    split: Correlation
    groups: Correlation
    #: software; release of the same
    engine: Correlation
    release: Correlation
    device: Correlation
    weights: Correlation
    #: one server at two loads or lengths, of its time per token
    load: Correlation
    #: the time per token and that to the first token, of one server
    first: Correlation
    #: pairs fitted
    n_points: int = Field(ge=1)
    source: str = Field(min_length=1, max_length=300)
    age: Age
