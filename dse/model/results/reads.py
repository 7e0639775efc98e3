"""Numbers of a device that results read, by what they decide: memory first, as it decides how many requests run."""

PLAIN = ("memory_capacity", "usable_frac", "runtime_overhead", "kv_page")
MEMORY = ("reported_memory", "server_memory", *PLAIN)
POOL = MEMORY[:-1]
UNUSED = ("memory_capacity", "reported_memory", "server_memory", "usable_frac", "runtime_overhead")
BANDWIDTH, STACK = ("memory_bandwidth", "peak_rates", "reached_rates"), ("stacks_of", "nearest_kernels")
NARROW = ("peak_flops_fp4", "peak_flops_fp8", "peak_ops_int8")
FORMATS = (*NARROW, "eight_bit_kernels", "nearest_format")
HOST = ("nearest_release",)
LINEAR = (*MEMORY, *BANDWIDTH, *STACK, *FORMATS, "peak_flops", "token_cores", "array_rows")
ATTENTION = (
    *MEMORY,
    *BANDWIDTH,
    "pim_bandwidth",
    *STACK,
    "peak_flops",
    "n_cores",
    "token_cores",
    "array_rows",
    "token_policy",
)
KERNELS = ("implementation", "no_kernel")
RATES = ("engine_rate", "fused_rate", *KERNELS)
#: what engines pack and unpack hides behind attention, wherever that reads
PACKING = (
    *MEMORY,
    *BANDWIDTH,
    *STACK,
    *RATES,
    "kernel_launch",
    "n_cores",
    "token_cores",
    "token_policy",
    "pim_bandwidth",
)
STEP = tuple(dict.fromkeys((*LINEAR, *PACKING, "quantize_rate", *HOST)))
_OF_PROMPTS = ("sparse_prompts",)
PROMPT = (
    *(name for name in STEP if name not in ("token_cores", "array_rows", "pim_bandwidth")),
    "link_bandwidth",
    "exchanges",
    *_OF_PROMPTS,
)
LINKS = (*MEMORY, "link_bandwidth", "exchanges")
#: everything that a time from first prompt to last token depends on
ALL = (*STEP, "core_clock", "kv_burst", "link_bandwidth", "exchanges", *_OF_PROMPTS)
#: of bytes and of operations of fewer bits
BYTES = (
    "energy_per_byte",
    "energy_per_byte_fp8",
    "energy_per_byte_fp4",
    "energy_per_kv_byte",
    "energy_per_kv_byte_fp8",
)
FLOPS = ("energy_per_flop", "energy_per_flop_fp8", "energy_per_flop_fp4")
BUSY = (*MEMORY, *BANDWIDTH, *STACK, *RATES, "n_cores", "token_cores", "token_policy")

#: parameters of formulas that are numbers of a device
DEVICE_PARAMETERS = {
    "bandwidth_bytes_per_s": "memory_bandwidth",
    "peak_flops_per_s": "peak_flops",
    "board_power_w": "board_power",
    "energy_per_byte": "energy_per_byte",
    "energy_per_flop": "energy_per_flop",
    "idle_power_w": "idle_power",
    "usd_per_hour": "usd_per_hour",
    "memory_capacity_bytes": "memory_capacity",
    "kernel_launch_s": "kernel_launch",
    "reported_bytes": "reported_memory",
}
