"""Requests as they come: when each arrives, how long its prompt and its answer are, and what follows from that alone.

`Moments` is what throughput in steady state needs, `Lengths` how often each length occurs. Both are exact sums over the
requests, so that they can be taken from a file of any size block by block.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError, show
from dse.core.field import check_whole
from dse.model.formulas import serving, weights

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: longest prompt and longest answer of a trace: above any model's context, and sums over a block fit 64 bits
MAX_TOKENS = 2**22
#: requests whose sums of products fit 64 bits at MAX_TOKENS
BLOCK_REQUESTS = 2**18


@dataclass(frozen=True)
class PromptBlocks:
    """The text of prompts in blocks: request r has those from first[r] on, up to first[r + 1].

    Blocks of equal `ids` hold the same text, which caches use where all before them is the same too. `end_tokens` is
    where each ends in its prompt.
    """

    first: NDArray[np.int64]
    ids: NDArray[np.int64]
    end_tokens: NDArray[np.int64]

    def take(self, which: NDArray[np.int64]) -> "PromptBlocks":
        """The blocks of some requests, in their order."""
        counts = np.diff(self.first)[which]
        first = np.concatenate(([0], np.cumsum(counts)))
        at = np.arange(first[-1]) + np.repeat(self.first[:-1][which] - first[:-1], counts)
        return PromptBlocks(first, self.ids[at], self.end_tokens[at])


@dataclass(frozen=True)
class Requests:
    """`n` requests in order of arrival. Seconds from the first, tokens of the prompt and of the answer (at least 1).

    `blocks` say what prompts have in common; None: nothing, and nothing is kept of a prompt.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    blocks: PromptBlocks | None = None

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> "Requests":
        """Some of the requests, by their places some of them more than once."""
        kept = np.arange(len(self.arrival_s))[which]
        blocks = self.blocks and self.blocks.take(kept)
        return Requests(self.arrival_s[kept], self.input_tokens[kept], self.output_tokens[kept], blocks)


@dataclass(frozen=True)
class Moments:
    """Means over the requests of a trace; sums are exact, each mean is rounded once.

    `mean_input_output` is E[I*O], and so on; the products count token^2. `duration_s` is from the first arrival to the
    last. Valid for one request or more.
    """

    n_requests: int
    duration_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    mean_input_squared: float
    mean_output_squared: float
    mean_input_output: float
    max_input_tokens: int
    max_output_tokens: int
    #: E[1/O], and the share of answers of one token
    mean_reciprocal_output: float
    single_share: float

    @classmethod
    def of(cls, requests: Requests) -> "Moments":
        """The moments of requests in memory. Raises InputError where there are none."""
        return Lengths.of(requests).moments

    def with_longer_answers(self, times: int) -> "Moments":
        """Make every answer `times` as long."""
        return replace(
            self,
            mean_output_tokens=times * self.mean_output_tokens,
            mean_input_output=times * self.mean_input_output,
            mean_output_squared=times * times * self.mean_output_squared,
            max_output_tokens=times * self.max_output_tokens,
            mean_reciprocal_output=self.mean_reciprocal_output / times,
            single_share=self.single_share if times == 1 else 0.0,
        )

    @property
    def mean_inverse_output(self) -> float:
        """E[1/O] of answers of two tokens or more; 1 where there are none."""
        single = self.single_share
        return (self.mean_reciprocal_output - single) / (1 - single) if single < 1 else 1.0

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second, mean; None where all arrive at once."""
        return float(serving.arrival_rate_per_s(self.n_requests, self.duration_s)) if self.duration_s > 0 else None

    @property
    def mean_decode_context_tokens(self) -> float:
        """Context of a decode step, mean over the steps of all requests."""
        return float(
            serving.mean_decode_context_tokens(
                self.mean_input_output, self.mean_output_squared, self.mean_output_tokens
            )
        )


@dataclass(frozen=True)
class Lengths:
    """Frequency of each length: arrays whose index is a number of tokens.

    `final_counts` is of the context after the last token, I + O; `final_steps` sums the decode steps (O) of the
    requests that end there. Memory is flat in the number of requests: 8 bytes a token of the longest, four times.
    """

    moments: Moments
    input_counts: Ints
    output_counts: Ints
    final_counts: Ints
    final_steps: Ints
    #: batch -> E[largest answer], E[longest prompt], where they are known better than from the counts
    known_largest: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, requests: Requests) -> "Lengths":
        """The lengths of requests in memory. Raises InputError where there are none."""
        counter = Counter()
        for first in range(0, len(requests.input_tokens), BLOCK_REQUESTS):
            block = slice(first, first + BLOCK_REQUESTS)
            counter.add(requests.input_tokens[block], requests.output_tokens[block])
        n = len(requests.arrival_s)
        return counter.lengths(float(requests.arrival_s[-1] - requests.arrival_s[0]) if n else 0.0)

    @property
    def n_steps(self) -> int:
        """Decode steps of all requests."""
        return int(self.final_steps.sum())

    @property
    def steps_at(self) -> Ints:
        """Decode steps, of all requests, that read a context of s tokens, at index s. They sum to `n_steps`.

        A request reads I+1 .. I+O once each: at s, those whose prompt is shorter than s and that do not end before s.
        """
        n = len(self.final_counts)
        begun = np.zeros(n, np.int64)
        begun[: len(self.input_counts)] = self.input_counts
        begun, ended = np.cumsum(begun), np.cumsum(self.final_counts)
        return np.concatenate([np.zeros(1, np.int64), begun[:-1] - ended[:-1]])

    def largest_output(self, batch: int) -> float:
        """E[largest of `batch` outputs], token."""
        known = self.known_largest.get(batch)
        return known[0] if known else expected_largest(self.output_counts, batch)

    def longest_input(self, batch: int) -> float:
        """E[longest prompt of `batch`], token."""
        known = self.known_largest.get(batch)
        return known[1] if known else expected_largest(self.input_counts, batch)


@dataclass
class Counter:
    """Adds up blocks of requests to `Lengths`. Sums are Python integers: exact for any number of requests."""

    n_requests: int = 0
    sums: list[int] = field(default_factory=lambda: [0] * 5)
    counts: list[Ints] = field(default_factory=lambda: [np.zeros(1, np.int64) for _ in range(4)])

    def add(self, inputs: Ints, outputs: Ints) -> None:
        """Count a block of at most BLOCK_REQUESTS. Raises InputError for a length out of range."""
        if not len(inputs):
            return
        for name, values in (("input_tokens", inputs), ("output_tokens", outputs)):
            for end in (values.min(), values.max()):
                check_whole(name, int(end), 1, MAX_TOKENS)
        self.n_requests += len(inputs)
        products = (inputs, outputs, inputs * inputs, outputs * outputs, inputs * outputs)
        self.sums = [total + int(values.sum()) for total, values in zip(self.sums, products, strict=True)]
        ones = np.ones(1, np.int64)
        final = inputs + outputs
        for i, (values, amounts) in enumerate(((inputs, ones), (outputs, ones), (final, ones), (final, outputs))):
            missing = int(values.max()) + 1 - len(self.counts[i])
            if missing > 0:
                self.counts[i] = np.concatenate([self.counts[i], np.zeros(missing, np.int64)])
            np.add.at(self.counts[i], values, amounts)

    def lengths(self, duration_s: float) -> Lengths:
        """Totals over all requests. Raises InputError for no requests."""
        n = self.n_requests
        if not n:
            raise InputError("requests = []: must be at least one")
        mean_in, mean_out, in_squared, out_squared, in_out = (total / n for total in self.sums)
        longest = [len(counts) - 1 for counts in self.counts]
        answers = self.counts[1][1:]
        moments = Moments(
            n_requests=n,
            duration_s=duration_s,
            mean_input_tokens=mean_in,
            mean_output_tokens=mean_out,
            mean_input_squared=in_squared,
            mean_output_squared=out_squared,
            mean_input_output=in_out,
            max_input_tokens=longest[0],
            max_output_tokens=longest[1],
            mean_reciprocal_output=float((answers / np.arange(1, len(answers) + 1)).sum()) / n,
            single_share=int(answers[0]) / n,
        )
        inputs, outputs, final, steps = self.counts
        return Lengths(
            moments=moments, input_counts=inputs, output_counts=outputs, final_counts=final, final_steps=steps
        )


def expected_largest(counts: Ints, batch: int) -> float:
    """E[largest of `batch` values drawn from those counted], exact on the empirical distribution.

    Sum over x of 1 - F(x)^batch, F the share of values of at most x: the same as the sum over sorted values of
    x_i * ((i/n)^B - ((i-1)/n)^B). Raises InputError for a batch below 1.
    """
    if batch < 1:
        raise InputError(f"batch = {show(batch)}: must be at least 1")
    share = np.cumsum(counts) / counts.sum()
    return float(np.sum(1.0 - weights.integer_power(share, batch)))


def quantile(counts: Ints, shares: Iterable[float]) -> list[int]:
    """For each share the smallest length that at least that share of the values does not exceed."""
    below = np.cumsum(counts)
    wanted = np.ceil(np.asarray(list(shares)) * below[-1]).clip(1)
    return [int(at) for at in np.searchsorted(below, wanted)]
