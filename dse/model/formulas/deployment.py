"""Requests and memory of each of several devices."""

from dse.core.compiling import ceil, formula


@formula(
    "sequence", "ceil(n_sequences / n_groups)", "docs/explanation/model.md, Several devices: requests spread evenly"
)
def requests_per_device(n_sequences: int, n_groups: int) -> int:
    """Requests whose keys and values a device holds; exact in integers."""
    return -(-n_sequences // n_groups)


@formula(
    "sequence",
    "ceil(running / (n_groups * n_in_flight))",
    "docs/explanation/model.md, Several devices: the fullest part",
)
def micro_batch(n_running: float, n_groups: float, n_in_flight: float) -> float:
    """Sequences that pass a device together: of the fullest group and the fullest batch in the pipeline."""
    return ceil(n_running / (n_groups * n_in_flight))


@formula("B", "ceil(bytes / n_stages)", "docs/explanation/model.md, Several devices: stages of as many layers")
def stage_bytes(n_bytes: int, n_stages: int) -> int:
    """Bytes of one stage of what all stages have together; exact in integers."""
    return -(-n_bytes // n_stages)
