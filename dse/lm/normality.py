"""The D'Agostino-Pearson test that NQKV section 3.1 judges blocks of the KV cache with (NQKV Table 1)."""

import numpy as np

#: NQKV's level of significance
ALPHA = 0.05


def dagostino_pearson(x: np.ndarray) -> np.ndarray:
    """p-values of the hypothesis that each row of x[..., n] is normally distributed; n must be at least 20.

    Skewness as D'Agostino (Biometrika 57, 1970) and kurtosis as Anscombe and Glynn (Biometrika 70, 1983) turn them
    into standard normal numbers; the sum of their squares is chi-squared with 2 degrees of freedom, so p = exp(-K2/2).
    Raises ValueError for fewer elements. Rows without spread give NaN.
    """
    n = x.shape[-1]
    if n < 20:
        raise ValueError(f"x has rows of {n}: must have at least 20 elements")
    off = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    m2, m3, m4 = (np.mean(off**k, axis=-1) for k in (2, 3, 4))
    m2 = np.where(m2 > 0, m2, np.nan)
    y = m3 / m2**1.5 * np.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))
    beta = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w2 = np.sqrt(2 * (beta - 1)) - 1
    z_skew = np.arcsinh(y / np.sqrt(2 / (w2 - 1))) / np.sqrt(0.5 * np.log(w2))
    mean = 3 * (n - 1) / (n + 1)
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    u = (m4 / m2**2 - mean) / np.sqrt(variance)
    root = 6 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9)) * np.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    a = 6 + 8 / root * (2 / root + np.sqrt(1 + 4 / root**2))
    ratio = (1 - 2 / a) / (1 + u * np.sqrt(2 / (a - 4)))
    z_kurtosis = (1 - 2 / (9 * a) - np.cbrt(ratio)) / np.sqrt(2 / (9 * a))
    p: np.ndarray = np.exp(-0.5 * (z_skew**2 + z_kurtosis**2))
    return p


def standardised(x: np.ndarray) -> np.ndarray:
    """Each row of x[..., n] less its mean, over its standard deviation, sorted: the ordinates of a quantile plot."""
    off = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    found: np.ndarray = np.sort(off / np.sqrt(np.mean(off**2, axis=-1, keepdims=True)), axis=-1)
    return found
