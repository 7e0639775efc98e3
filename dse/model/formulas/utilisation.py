"""Share of a peak rate that an operation reaches while it runs."""

from dse.core.compiling import formula


@formula("1", "(FLOP / F) / seconds, or (bytes / BW) / seconds", "docs/explanation/model.md, Utilisation")
def utilisation(at_peak_s: float, seconds: float) -> float:
    """Share of a peak rate: the seconds that the amount takes at the peak over those it takes. seconds > 0."""
    return at_peak_s / seconds
