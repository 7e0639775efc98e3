"""Energy and money per token."""

from dse.formulas.core import formula


@formula("J/token", "board_power / throughput", "Oaken 6.2 compares board powers; docs/model.md, Energy")
def joules_per_token(board_power_w, throughput_tokens_per_s):
    """Energy of one output token when the board draws its full power all the time."""
    return board_power_w / throughput_tokens_per_s


@formula("USD", "usd_per_hour / 3600 / throughput * 1e6", "docs/model.md, Energy and cost")
def usd_per_million_tokens(usd_per_hour, throughput_tokens_per_s):
    """Price of a million output tokens on a device rented by the hour."""
    return usd_per_hour / 3600 / throughput_tokens_per_s * 1e6
