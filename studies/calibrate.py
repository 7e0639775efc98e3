"""Keys and values of a calibration text, for methods that need constants known beforehand."""

import numpy as np

from dse.transformer.caches import Calibration, FloatCache
from studies.forward import forward
from studies.weights import ByteModel


def calibrate(model: ByteModel, tokens: np.ndarray) -> Calibration:
    """Run tokens [batch, n] through the model exactly and keep what a cache would hold."""
    found: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = {}
    for before in (False, True):
        caches = [FloatCache("fp16") for _ in model.layers]
        for cache in caches:
            cache.before_rope = before
        forward(model, tokens, caches, own=True, last_only=True)
        found[before] = [cache.seen() for cache in caches]
    return Calibration(
        tuple(key for key, _ in found[True]),
        tuple(key for key, _ in found[False]),
        tuple(value for _, value in found[False]),
    )
