"""Cost of unpacking stored keys and values, and of packing new ones, on the three paths.

engine: streaming units beside the memory controller; only what does not hide behind the read is paid (Oaken 5.2).
fused: unpacked in registers inside the attention kernel, overlapped with its reads; paid where it is the slowest.
materialised: written back as FP16 and read again: traffic on top of the packed read (NQKV 3.2).
"""

from dse.formulas.core import formula


@formula("B", "2 * 16 / 8 * n_elements", "docs/model.md, Dequantisation: written once and read once as FP16")
def materialised_bytes(n_elements):
    """Extra traffic of a step that writes unpacked elements to memory and reads them again."""
    return 4 * n_elements


@formula("s", "max(0, busy_s - hidden_behind_s)", "docs/model.md, Dequantisation; Oaken 5.3")
def exposed_s(busy_s, hidden_behind_s):
    """What is left of a busy time that overlaps another one."""
    return max(0.0, busy_s - hidden_behind_s)


@formula("s", "n_layers * launches_per_layer * kernel_launch_s", "small kernels a method adds; assumed, see the device")
def launch_s(n_layers, launches_per_layer, kernel_launch_s):
    """Seconds spent starting a method's own kernels."""
    return n_layers * launches_per_layer * kernel_launch_s
