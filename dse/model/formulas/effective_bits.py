"""Effective and stored bits per element, and the axes of Oaken's Figure 1."""

import math

from dse.core.compiling import formula


@formula("bit", "8 * sequence_bytes / n_elements", "docs/explanation/model.md, Bits")
def stored_bits(sequence_bytes: float, n_elements: float) -> float:
    """Bits an element really occupies at a given length; this number drives bytes, time and capacity."""
    return 8 * sequence_bytes / n_elements


@formula("dB", "10 * log10(signal / error), sums of squares", "signal to quantization noise ratio")
def sqnr_db(squared_signal: float, squared_error: float) -> float:
    """Signal-to-quantization-noise ratio of a quantizer, in decibels. Both > 0."""
    return 10 * math.log10(squared_signal / squared_error)


@formula("B/s", "bandwidth * 16 / effective_bits", "Oaken Figure 1; docs/explanation/model.md, Effective axes")
def effective_bandwidth_bytes_per_s(bandwidth_bytes_per_s: float, effective_bits: float) -> float:
    """Bandwidth as FP16 KV would need it to move the same elements."""
    return bandwidth_bytes_per_s * (16 / effective_bits)


@formula("B", "capacity * 16 / effective_bits", "Oaken Figure 1; docs/explanation/model.md, Effective axes")
def effective_capacity_bytes(capacity_bytes: float, effective_bits: float) -> float:
    """Capacity as FP16 KV would need it to hold the same elements."""
    return capacity_bytes * (16 / effective_bits)
