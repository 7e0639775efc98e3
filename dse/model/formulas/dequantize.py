"""Cost of unpacking stored keys and values, and of packing new ones, on the three paths.

engine: streaming units beside the memory controller; only what does not hide behind the read is paid (Oaken 5.2).
fused: unpacked in registers inside the attention kernel, overlapped with its reads; paid where it is the slowest.
materialised: written back as FP16 and read again: traffic on top of the packed read (NQKV 3.2).
"""

from dse.core.compiling import formula
from dse.model.formulas.kv_cache import sum_of_packed_tokens


@formula(
    "B", "2 * 16 / 8 * n_elements", "docs/explanation/model.md, Dequantization: written once and read once as FP16"
)
def materialised_bytes(n_elements: int) -> int:
    """Extra traffic of a step that writes unpacked elements to memory and reads them again."""
    return 4 * n_elements


@formula("s", "max(0, busy_s - hidden_behind_s)", "docs/explanation/model.md, Dequantization; Oaken 5.3")
def exposed_s(busy_s: float, hidden_behind_s: float) -> float:
    """Part of a busy time that is not hidden behind another one."""
    return max(0.0, busy_s - hidden_behind_s)


@formula("s", "n_launches * kernel_launch_s", "small kernels a method adds; the launch time is assumed, see the device")
def launch_s(n_launches: float, kernel_launch_s: float) -> float:
    """Seconds spent starting a method's own kernels."""
    return n_launches * kernel_launch_s


@formula(
    "token",
    "step * (last**2 - first**2): each event k reads step * (k - 1) packed tokens and writes step * k",
    "KIVI's released code extends the packed buffers by concatenation (models/llama_kivi.py)",
)
def copied_tokens(first_events: int, last_events: int, step_tokens: int, window_events: int) -> int:
    """Packed tokens read and written again while a sequence goes from `first_events` to `last_events` packings.

    Once a window is full the buffer stays at `window_events` groups and each event still copies it.
    """
    first, last = min(first_events, window_events), min(last_events, window_events)
    beyond = (last_events - last) - (first_events - first)
    return step_tokens * (last * last - first * first + beyond * 2 * window_events)


@formula(
    "token",
    "sum over s = first + 1 .. last of (s - packed(s))",
    "KIVI's released code joins the new token to the 16-bit ones by a copy in every step (models/llama_kivi.py)",
)
def waiting_tokens(first_tokens: int, last_tokens: int, step_tokens: int, residual_tokens: int) -> int:
    """Tokens that wait to be packed, summed over the steps in which a sequence grows from `first_tokens`."""
    packed = sum_of_packed_tokens(last_tokens, step_tokens, residual_tokens)
    packed -= sum_of_packed_tokens(first_tokens, step_tokens, residual_tokens)
    return (last_tokens * (last_tokens + 1) - first_tokens * (first_tokens + 1)) // 2 - packed
