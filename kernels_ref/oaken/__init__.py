"""Oaken: online-offline hybrid KV quantization by thresholds, with outliers fused into the dense matrix.

Offline, `Profiler` finds `Thresholds`; online, `Oaken.of(thresholds, layer, which)` quantizes and dequantizes.
"""

from kernels_ref.oaken.method import Oaken
from kernels_ref.oaken.profile import Profiler
from kernels_ref.oaken.thresholds import Thresholds

__all__ = ["Oaken", "Profiler", "Thresholds"]
