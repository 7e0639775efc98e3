"""Requests of agents in a closed loop: sessions of turns, each prompt all before it and what the turn adds."""

from dataclasses import dataclass

import numpy as np

from dse.core.errors import InputError, LimitError
from dse.serving.requests import PromptBlocks, Requests

#: blocks of all prompts that are drawn, one a turn before it
MAX_BLOCKS = 2**25
#: requests that are counted, at least: fewer sessions run longer
LEAST_REQUESTS = 4_000


@dataclass(frozen=True)
class Agents:
    """A load of `sessions` at a time, each of `turns` and replaced by a new one at its end.

    A turn adds `growth_tokens` to the context, of which `output_tokens` are its answer; every session begins with the
    same `shared_tokens`.
    Between an answer and the next turn pass `think_s` in the mean, exponentially distributed.
    """

    sessions: int
    turns: int
    growth_tokens: int
    think_s: float
    shared_tokens: int = 0
    output_tokens: int = 256

    @property
    def mean_input_tokens(self) -> float:
        """Prompt of a turn, mean over a session."""
        return self.shared_tokens + self.growth_tokens * (self.turns + 1) / 2 - self.output_tokens

    @property
    def last_tokens(self) -> int:
        """Context after the last turn."""
        return self.shared_tokens + self.turns * self.growth_tokens


def check_agents(agents: Agents, longest_tokens: int | None) -> None:
    """Raise InputError where a turn adds less than its answer, or the last one goes beyond the longest context."""
    if agents.growth_tokens <= agents.output_tokens:
        raise InputError(
            f"growth = {agents.growth_tokens:,}: must be more than the answer of {agents.output_tokens:,} tokens, which"
            " it includes: raise --growth or lower --output"
        )
    if longest_tokens and agents.last_tokens > longest_tokens:
        most = max((longest_tokens - agents.shared_tokens) // agents.turns, 0)
        raise InputError(
            f"growth = {agents.growth_tokens:,}: {agents.turns:,} turns end at {agents.last_tokens:,} tokens, the "
            f"longest context is {longest_tokens:,}: must be at most {most:,} for as many turns"
        )


def requests_of_agents(agents: Agents, answer_s: float, seed: int = 1) -> tuple[Requests, int]:
    """Requests of the agents in order of arrival, and how many of them come before the load is steady.

    Sessions begin at a random turn; a turn takes `answer_s`. A block is what one turn adds, which reaches beyond its
    prompt: the answer is kept. Raises LimitError above MAX_BLOCKS.
    """
    n, turns = agents.sessions, agents.turns
    counted = max(turns, -(-LEAST_REQUESTS // n))
    if n * (turns + counted) * (turns + 2) // 2 > MAX_BLOCKS:
        raise LimitError(
            f"sessions = {n:,}: with {turns:,} turns more than {MAX_BLOCKS:,} turns before turns: ask for fewer"
        )
    rng = np.random.Generator(np.random.PCG64([seed, 3]))
    places = np.arange(turns + counted)
    begun = rng.integers(0, turns, n)
    turn = (begun[:, None] + places) % turns
    session = np.cumsum(turn == 0, axis=1) * n + np.arange(n)[:, None]
    gaps_s = answer_s + agents.think_s * rng.exponential(1.0, turn.shape)
    gaps_s[:, 0] *= rng.random(n)
    at_s = np.cumsum(gaps_s, axis=1)
    order = np.argsort(at_s, axis=None, kind="stable")
    order = order[at_s.ravel()[order] <= at_s[:, -1].min()]  # later, sessions are missing
    turn, session = turn.ravel()[order], session.ravel()[order]
    has_shared = int(agents.shared_tokens > 0)
    counts = turn + 1 + has_shared
    first = np.concatenate(([0], np.cumsum(counts)))
    place = np.arange(first[-1]) - np.repeat(first[:-1], counts) + 1 - has_shared
    ids = np.where(place == 0, -1, np.repeat(session, counts))
    ends = agents.shared_tokens + place * agents.growth_tokens
    requests = Requests(
        arrival_s=at_s.ravel()[order],
        input_tokens=agents.shared_tokens + (turn + 1) * agents.growth_tokens - agents.output_tokens,
        output_tokens=np.full(len(order), agents.output_tokens, np.int64),
        blocks=PromptBlocks(first, ids, ends),
    )
    return requests, min(n * turns, len(order) // 2)
