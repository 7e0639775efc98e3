"""The D'Agostino-Pearson test that NQKV section 3.1 judges blocks of the KV cache with (NQKV Table 1)."""

import warnings

import numpy as np

#: NQKV's level of significance
ALPHA = 0.05


def dagostino_pearson(x: np.ndarray) -> np.ndarray:
    """p-values of the hypothesis that each row of x[..., n] is normally distributed; n must be at least 20.

    Raises ValueError for fewer elements, with which the test is not valid. Rows without spread give NaN.
    """
    from scipy import stats

    if (n := x.shape[-1]) < 20:
        raise ValueError(f"x has rows of {n}: must have at least 20 elements")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rows without spread
        p: np.ndarray = stats.normaltest(x.astype(np.float64), axis=-1).pvalue
    return p


def standardised(x: np.ndarray) -> np.ndarray:
    """Each row of x[..., n] less its mean, over its standard deviation, sorted: the ordinates of a quantile plot."""
    off = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    ordinates: np.ndarray = np.sort(off / np.sqrt(np.mean(off**2, axis=-1, keepdims=True)), axis=-1)
    return ordinates
