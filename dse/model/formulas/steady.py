"""Throughput in steady state: a finished request is replaced at once, so that a device never waits."""

from math import exp

from dse.core.compiling import formula
from dse.model.formulas.weights import integer_power

_SOURCE = "docs/explanation/model.md, One server"


@formula("token", "(E[I*O] + E[O^2]) / E[O]", _SOURCE)
def mean_reserved_tokens(mean_input_output: float, mean_output_squared: float, mean_output_tokens: float) -> float:
    """Final length I + O of a running request, mean over time: a request runs as long as its answer is."""
    return (mean_input_output + mean_output_squared) / mean_output_tokens


@formula("token", "E[I^2] / E[I]", _SOURCE)
def mean_prompt_of_tokens(mean_input_squared: float, mean_input_tokens: float) -> float:
    """Length of the prompt that a prompt token is in, mean over the tokens: where cost per token grows with length."""
    return mean_input_squared / mean_input_tokens


@formula("s", "E[O] / n * decode_step_s + prefill_s", _SOURCE)
def steady_request_s(mean_output_tokens: float, n_sequences: float, decode_step_s: float, prefill_s: float) -> float:
    """Seconds of the device that a request costs: its share of the steps it runs in, and its prompt, for which the
    others wait."""
    return mean_output_tokens / n_sequences * decode_step_s + prefill_s


@formula("s", "prompt_steps * prompt_step_s / 2 * min(rounds_in_step / rounds, 1)", _SOURCE)
def burst_wait_s(prompt_steps: float, prompt_step_s: float, rounds_in_step: float, rounds: float) -> float:
    """Wait behind the prompts of others, mean over requests: all start at once, so the first of each place waits for
    half of the steps of the others' prompts, and those of later rounds do until requests have fallen out of step."""
    return prompt_steps * prompt_step_s / 2 * min(rounds_in_step / rounds, 1.0)


@formula("1", "1 - (1 - group_share)^groups", _SOURCE)
def some_share(group_share: float, n_groups: int) -> float:
    """Share of the steps in which at least one group works on a prompt, where each does in `group_share` of them,
    independently."""
    return 1.0 - integer_power(1.0 - group_share, n_groups)


@formula("s", "(n / places - 1) * request_s", _SOURCE)
def place_wait_s(n_requests: float, n_places: float, request_s: float) -> float:
    """Wait for a place in memory where more requests ask than fit; a request holds its place for `request_s`."""
    return (n_requests / n_places - 1) * request_s


@formula("sequence", "places * decode_s / (first_s + decode_s)", _SOURCE)
def decoding_requests(n_places: float, first_s: float, decode_s: float) -> float:
    """Requests that decode, mean over time: of its time in a place a request decodes for `decode_s`."""
    return n_places * decode_s / (first_s + decode_s)


@formula(
    "s",
    "rate * E[p^2] / (2 * (1 - rate * E[p])) + pause_s / 2",
    "docs/explanation/model.md, At a rate: M/G/1 queue with vacations (Levy and Yechiali 1975)",
)
def prompt_queue_s(requests_per_s: float, mean_prompt_s: float, mean_prompt_squared: float, pause_s: float) -> float:
    """Wait of a prompt until work on it begins: for those before it, and for the end of the step of `pause_s` that runs
    where none was waiting. Poisson arrivals; requests_per_s * mean_prompt_s < 1."""
    return requests_per_s * mean_prompt_squared / (2 * (1 - requests_per_s * mean_prompt_s)) + pause_s / 2


@formula(
    "s",
    "max(1 - exp(-came), came * prompt_steps) * (prompt_step_s - tpot), came = rate * first_s",
    "docs/explanation/model.md, At a rate: those behind it came while it was there (Poisson, first come first served)",
)
def behind_wait_s(
    requests_per_s: float, first_s: float, prompt_steps: float, prompt_step_s: float, tpot_s: float
) -> float:
    """Time that a request, once its prompt is done, loses to the prompts of those that came meanwhile, in `first_s`.

    A prompt fills `prompt_steps` steps, below 1 a part of one; several share a step, and such a step also gives each
    request a token, in `prompt_step_s` in place of `tpot_s`."""
    came = requests_per_s * first_s
    return max(1 - exp(-came), came * prompt_steps) * max(prompt_step_s - tpot_s, 0.0)


@formula(
    "s",
    "tpot + behind_s * (E[1/O] - 1 / E[O])",
    "docs/explanation/model.md, At a rate: the mean of ratios, of a time behind_s + O * t",
)
def tpot_of_requests_s(tpot_s: float, behind_s: float, mean_inverse_output: float, mean_output_tokens: float) -> float:
    """Mean over requests of their time per token, where `tpot_s` is that over tokens: of `behind_s`, which each answer
    loses once, a short one has more a token."""
    return tpot_s + behind_s * (mean_inverse_output - 1 / mean_output_tokens)


@formula(
    "s",
    "full_share * load / (1 - load)^2 / rate * (1 + cv^2) / 2, load = rate / full_per_s",
    "docs/explanation/model.md, At a rate: birth-death chain, scaled as by Allen and Cunneen (1990)",
)
def place_queue_s(requests_per_s: float, full_per_s: float, full_share: float, squared_variation: float) -> float:
    """Wait for a place, mean over requests. All places are taken and none waits for `full_share` of the time, while
    they are taken `full_per_s` requests end a second; variation is that of the time in a place. requests_per_s <
    full_per_s."""
    load = requests_per_s / full_per_s
    return full_share * load / (1 - load) ** 2 / requests_per_s * (1 + squared_variation) / 2


@formula("tok/s", "requests * O / (ttft + O * tpot)", _SOURCE)
def closed_loop_tokens_per_s(n_requests: float, output_tokens: float, ttft_s: float, tpot_s: float) -> float:
    """Tokens a second of a server that always has so many requests, each replaced as it ends (Little's law)."""
    return n_requests * output_tokens / (ttft_s + output_tokens * tpot_s)
