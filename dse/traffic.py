"""Requests as they come: when each arrives, how long its prompt and its answer are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Requests:
    """`n` requests in order of arrival. Seconds from the first, tokens of the prompt and of the answer (at least 1)."""

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
