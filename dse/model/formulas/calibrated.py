"""Time of measured kernels, one layer's decode attention and one matrix product: ceilings joined by a root of squares.

The form and the constants are explained, with what they were fitted on, in docs/explanation/calibration.md. Parameters
of a device and software stack come from its file (`stacks`). Closed forms of + - * / sqrt min max: nothing falls when
the context, the batch, the heads or the bits grow.
"""

from math import sqrt

from dse.core.compiling import formula
from dse.model.formulas.linear import linear_calibrated_s

#: tokens of context above which attention kernels split a sequence over several cores
SPLIT_TOKENS = 128
#: share of the peak FLOP/s that attention's products reach at most; never binding for one query a sequence
ATTENTION_FLOPS_FRAC = 0.6

_FORM = "docs/explanation/calibration.md, The form"


@formula("B", "2 * n_sequences * n_q_heads * score_dim", _FORM + ": queries and outputs of one token, 16 bits each")
def attention_io_bytes(n_sequences: int, n_q_heads: int, score_dim: int) -> int:
    """Bytes of queries read and outputs written by one layer; score_dim = key dim + value dim of a head."""
    return 2 * n_sequences * n_q_heads * score_dim


@formula("1", "1 if n_q_heads > n_kv_heads and n_sequences > 1 else 0", _FORM + ": grouped queries are reordered")
def layout_copies(n_sequences: int, n_q_heads: int, n_kv_heads: int) -> int:
    """Count the layout copies of the queries of a layer: one where heads share keys in a batch, else none."""
    if n_q_heads > n_kv_heads and n_sequences > 1:
        return 1
    return 0


@formula("s", "(KV bytes + query and output bytes) / (memory_frac * BW)", _FORM)
def attention_memory_s(
    kv_read_bytes: float, io_bytes: float, memory_frac: float, bandwidth_bytes_per_s: float
) -> float:
    """Seconds that the memory is busy; memory_frac is the share of the peak bandwidth that the kernel reaches."""
    return (kv_read_bytes + io_bytes) / (memory_frac * bandwidth_bytes_per_s)


@formula("s", "unit_s * n_units / n_cores", _FORM)
def attention_unit_s(n_units: float, unit_s: float, n_cores: float) -> float:
    """Seconds of scheduling: every core takes its share of the work units (sequences * KV heads) one by one."""
    return unit_s * n_units / n_cores


@formula("1", "min(n_cores, n_units * max(1, s / 128))", _FORM)
def active_cores(n_tokens: float, n_units: float, n_cores: float) -> float:
    """Cores with something to do: a work unit is split into pieces of 128 tokens."""
    return min(n_cores, n_units * max(1.0, n_tokens / SPLIT_TOKENS))


@formula("1", "min(n_cores, n_units * cores_per_unit)", "docs/explanation/implementations.md, The form")
def filled_cores(n_units: float, cores_per_unit: float, n_cores: float) -> float:
    """Cores with something to do where a kernel splits every sequence into as many parts, long or short."""
    return min(n_cores, n_units * cores_per_unit)


@formula("s", "elements / (active cores * core_rate_per_s), 0 without a rate", _FORM)
def attention_core_s(
    n_tokens: float, n_elements: float, n_units: float, core_rate_per_s: float, n_cores: float
) -> float:
    """Seconds to unpack the cached elements: elements do not shrink with their bits.

    core_rate_per_s is elements per second and core; 0 stands for no ceiling.
    """
    if core_rate_per_s > 0:
        return n_elements / (active_cores(n_tokens, n_units, n_cores) * core_rate_per_s)
    return 0.0


@formula("s", "FLOP / (flops_frac * F)", _FORM + "; 0.6 where none was fitted")
def attention_compute_s(flops: float, flops_frac: float, peak_flops_per_s: float) -> float:
    """Seconds of attention's products at the share of the peak that such kernels reach."""
    return flops / (flops_frac * peak_flops_per_s)


@formula("s", "launch + copy * copies + (split if s > 128)", _FORM)
def attention_fixed_s(n_tokens: float, n_copies: float, launch_s: float, split_s: float, copy_s: float) -> float:
    """Seconds of one layer that do not depend on what it reads: starts, layout copies, joining what was split."""
    fixed_s = launch_s + copy_s * n_copies
    if n_tokens > SPLIT_TOKENS:
        fixed_s = fixed_s + split_s
    return fixed_s


@formula("s", "launch + copy * copies + (split if s > 128) + sqrt(memory^2 + unit^2 + core^2 + compute^2)", _FORM)
def attention_layer_s(
    n_tokens: float,
    n_units: float,
    n_elements: float,
    kv_read_bytes: float,
    io_bytes: float,
    flops: float,
    n_copies: float,
    launch_s: float,
    split_s: float,
    copy_s: float,
    unit_s: float,
    memory_frac: float,
    core_rate_per_s: float,
    n_cores: float,
    bandwidth_bytes_per_s: float,
    peak_flops_per_s: float,
) -> float:
    """Seconds of decode attention in one layer at a context of n_tokens, for a whole batch.

    n_units = sequences * KV heads; n_elements and kv_read_bytes are those of the keys and values read, apart, since
    quantised elements have fewer bytes but take as long to unpack.
    """
    memory_s = attention_memory_s(kv_read_bytes, io_bytes, memory_frac, bandwidth_bytes_per_s)
    schedule_s = attention_unit_s(n_units, unit_s, n_cores)
    unpack_s = attention_core_s(n_tokens, n_elements, n_units, core_rate_per_s, n_cores)
    compute_s = attention_compute_s(flops, ATTENTION_FLOPS_FRAC, peak_flops_per_s)
    fixed_s = attention_fixed_s(n_tokens, n_copies, launch_s, split_s, copy_s)
    return fixed_s + sqrt(memory_s * memory_s + schedule_s * schedule_s + unpack_s * unpack_s + compute_s * compute_s)


@formula("s", "index bytes / (index_frac * BW)", "docs/explanation/calibration.md, Kernels of whole steps")
def index_read_s(index_bytes: float, index_frac: float, bandwidth_bytes_per_s: float) -> float:
    """Seconds to score all tokens of a sequence by the index of one layer."""
    return index_bytes / (index_frac * bandwidth_bytes_per_s)


@formula("s", "tokens * choice", "docs/explanation/calibration.md, Kernels of whole steps")
def choice_s(n_tokens: float, choice_s_per_token: float) -> float:
    """Seconds to choose among n_tokens of each sequence by their scores: sequences are chosen from side by side."""
    return n_tokens * choice_s_per_token


@formula("s", "pool bytes / (n_cores * cast_per_s)", "docs/explanation/calibration.md, Kernels of whole steps")
def pool_cast_s(pool_bytes: float, cast_per_s: float, n_cores: float) -> float:
    """Seconds to write FP8 latents of a pool in 16 bits, used or not, before a kernel that reads no FP8; cast_per_s is
    elements, a byte each, per second and core."""
    return pool_bytes / (n_cores * cast_per_s)


@formula("FLOP", "2 * m * n * k", "a multiplication and an addition per product")
def gemm_flops(m_rows: int, n_columns: int, k_inner: int) -> int:
    """Operations of a matrix product (m x k) @ (k x n)."""
    return 2 * m_rows * n_columns * k_inner


@formula("B", "2 * (m * k + k * n + m * n)", "both operands read, the result written, 16 bits an element")
def gemm_bytes(m_rows: int, n_columns: int, k_inner: int) -> int:
    """Bytes that a 16-bit matrix product (m x k) @ (k x n) moves."""
    return 2 * (m_rows * k_inner + k_inner * n_columns + m_rows * n_columns)


@formula("s", "launch + sqrt((FLOP / (flops_frac * F))^2 + (bytes / (memory_frac * BW))^2)", _FORM)
def gemm_s(
    flops: float,
    n_bytes: float,
    launch_s: float,
    flops_frac: float,
    memory_frac: float,
    peak_flops_per_s: float,
    bandwidth_bytes_per_s: float,
) -> float:
    """Seconds of one dense matrix product at decode sizes."""
    compute_s = flops / (flops_frac * peak_flops_per_s)
    memory_s = n_bytes / (memory_frac * bandwidth_bytes_per_s)
    return linear_calibrated_s(1, launch_s, compute_s, memory_s)
