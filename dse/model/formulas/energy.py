"""Energy and money per token."""

from dse.core.compiling import formula


@formula("J/token", "board_power / throughput", "Oaken 6.2 compares board powers; docs/explanation/model.md, Energy")
def joules_per_token(board_power_w: float, throughput_tokens_per_s: float) -> float:
    """Energy of one output token when the board draws its full power all the time."""
    return board_power_w / throughput_tokens_per_s


_PARTS = "docs/explanation/model.md, Energy and cost: the model by parts; its rates are assumed"


@formula("J/token", "bytes * J/B / tokens", _PARTS)
def memory_joules_per_token(n_bytes: float, energy_per_byte: float, n_tokens: float) -> float:
    """Energy of reading and writing memory, for each of `n_tokens` output tokens."""
    return n_bytes * energy_per_byte / n_tokens


@formula("J/token", "seconds at the peak * F * J/FLOP / tokens", _PARTS)
def compute_joules_per_token(
    at_peak_s: float, peak_flops_per_s: float, energy_per_flop: float, n_tokens: float
) -> float:
    """Energy of arithmetic. An 8-bit operation counts as the share of an FP16 one that its peak rate makes it."""
    return at_peak_s * peak_flops_per_s * energy_per_flop / n_tokens


@formula(
    "s",
    "max(0, joules / (limit_w - idle_w) - seconds)",
    "docs/explanation/model.md, Energy and cost: the limit of a board",
)
def power_s(seconds: float, joules: float, limit_w: float, idle_w: float) -> float:
    """Seconds that a board's limit adds to what takes `joules` in `seconds`: power is never above it."""
    return max(0.0, joules / (limit_w - idle_w) - seconds)


@formula(
    "1",
    "min(1, (limit_w - idle_w) * seconds / joules)",
    "docs/explanation/model.md, Energy and cost: the limit of a board",
)
def share_within_limit(joules: float, seconds: float, limit_w: float, idle_w: float) -> float:
    """Share of `joules` that a board can draw in `seconds` beside its idle power: the rest was counted too high."""
    return min(1.0, (limit_w - idle_w) * seconds / joules)


@formula("J/token", "idle power * seconds / tokens", _PARTS)
def idle_joules_per_token(idle_power_w: float, total_s: float, n_tokens: float) -> float:
    """Energy that the board draws all the time."""
    return idle_power_w * total_s / n_tokens


@formula("J/token", "memory + compute + idle", _PARTS)
def joules_per_token_by_parts(
    memory_joules_per_token: float, compute_joules_per_token: float, idle_joules_per_token: float
) -> float:
    """Energy of one output token, prompt included."""
    return memory_joules_per_token + compute_joules_per_token + idle_joules_per_token


@formula(
    "USD per request",
    "usd_per_hour / 3600 * (generation_s + prompt_s * (1 - cached_input_discount * cached_tokens / input_tokens))",
    "docs/explanation/model.md, Energy and cost",
)
def usd_per_request(
    usd_per_hour: float,
    generation_s: float,
    prompt_s: float,
    input_tokens: float,
    cached_tokens: float,
    cached_input_discount: float,
) -> float:
    """Price of one request: device seconds of its tokens at the device's rent, cached input tokens cheaper."""
    paid_share = 1 - cached_input_discount * cached_tokens / input_tokens
    return usd_per_hour / 3600 * (generation_s + prompt_s * paid_share)


@formula(
    "USD per million tokens", "usd_per_hour / 3600 / throughput * 1e6", "docs/explanation/model.md, Energy and cost"
)
def usd_per_million_tokens(usd_per_hour: float, throughput_tokens_per_s: float) -> float:
    """Price of a million output tokens on a device rented by the hour."""
    return usd_per_hour / 3600 / throughput_tokens_per_s * 1e6
