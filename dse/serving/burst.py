"""A burst as benchmarks send it: all requests at once to a server with its own defaults, the tail counted.

vLLM and TensorRT-LLM share steps between prompts and decoding, up to their prompt budget; SGLang works on whole prompts
first. Benchmarks print tokens over the time until the last answer ends, and the mean over requests of the time from
the first token to the last, by its tokens but one.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.model.point import Point
from dse.serving import simulator, steady_state
from dse.serving.requests import Requests

Ints = NDArray[np.int64]

#: ShareGPT as vLLM's and SGLang's benchmarks sample it: prompts of up to 1,024 tokens, log-normal with this spread, and
#: answers that end at a constant rate. Assumed from its published quantiles: means alone are printed
LONGEST_TOKENS, PROMPT_SPREAD = 1024, 1.3
#: halvings of the interval in which the scale of drawn lengths lies
N_HALVINGS = 50


class Burst(NamedTuple):
    """Means of a burst, as a benchmark prints them."""

    output_tokens_per_s: float
    tpot_s: float
    ttft_s: float
    duration_s: float
    peak_running: int


def varied_lengths(
    n_requests: int, mean_input_tokens: float, mean_output_tokens: float, longest_output_tokens: int = 0
) -> tuple[Ints, Ints]:
    """Prompts and answers of a chat trace with these means: quantiles of both distributions, in seeded order."""
    shares = (np.arange(n_requests) + 0.5) / n_requests
    normal = np.sqrt(2) * _inverse_erf(2 * shares - 1)
    rng = np.random.default_rng(1)
    prompts = _scaled(np.exp(PROMPT_SPREAD * normal), mean_input_tokens)
    answers = _scaled(-np.log1p(-shares), mean_output_tokens, longest_output_tokens)
    return rng.permutation(prompts), rng.permutation(answers)


def _inverse_erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse of the error function within 0.2 % (Winitzki 2008)."""
    a = 0.147
    log = np.log1p(-(x**2))
    half = 2 / (np.pi * a) + log / 2
    return np.sign(x) * np.sqrt(np.sqrt(half**2 - log / a) - half)


def _scaled(shape: NDArray[np.float64], mean: float, longest: int = 0) -> Ints:
    """Whole lengths from 1 to the longest with a mean, as near as halving finds it."""
    longest = longest or max(LONGEST_TOKENS, int(2 * mean))
    low, high = 0.0, 1 + longest / shape.min()
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        if np.clip(np.round(middle * shape), 1, longest).mean() < mean:
            low = middle
        else:
            high = middle
    return np.clip(np.round(high * shape), 1, longest).astype(np.int64)


def serve(point: Point, inputs: Ints, outputs: Ints) -> Burst:
    """Serve requests that come at once on the server of a point; `point.batch` bounds those that run.

    Answers of one token end with their prompt; the simulator counts one step for them. Raises InputError where none
    fits or the split is not simulated.
    """
    work = replace(point.work, batch=min(point.design.load.most_at_once, len(inputs)), rounds=1)
    scheduler = steady_state.scheduler_of(point.device, point.plan, point.work)
    # the first token comes with the prompt: one step less than tokens
    steps = np.maximum(outputs - 1, 1)
    run = simulator.run(point.device, point.plan, work, Requests(np.zeros(len(inputs)), inputs, steps), scheduler)
    own_s = steady_state.start_s(point, run.mean_running)
    duration_s = run.duration_s + own_s
    return Burst(
        output_tokens_per_s=float(outputs.sum()) / duration_s,
        tpot_s=float(np.mean((run.finish_s - run.first_s) / run.requests.output_tokens)),
        ttft_s=float(np.mean(run.first_s)) + own_s,
        duration_s=duration_s,
        peak_running=run.peak_running,
    )
