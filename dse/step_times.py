"""Seconds of one step that serves requests of different lengths: decoding, whole prompts, or parts of them.

A step is made of three things, each a table of what `dse.steps.evaluate` gives: the matrix products over all its
tokens, which decoding and prompts share; attention and packing of the sequences that decode, by how many they are and
their mean context; attention and packing of prompt tokens, by where in the prompt they stand.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse import point, steps
from dse.plan import KvPlan
from dse.specs import HardwareSpec
from dse.trace import Trace
from dse.workload import Workload

#: every token count up to here is a node of the tables over tokens: roofs meet below it on all devices
DENSE_TOKENS = 512
#: nodes above it, and of contexts: each this much larger than the one before
TOKENS_RATIO = 1.05
CONTEXT_RATIO = 1.25
#: sequences: every count up to here, then a ratio
DENSE_SEQUENCES = 8
SEQUENCES_RATIO = 1.2
#: the shortest context that a step reads: a prompt of one token and the first token after it
MIN_CONTEXT_TOKENS = 2


class Tables(NamedTuple):
    """`StepTimes` as arrays, for compiled code (numba takes a NamedTuple of arrays)."""

    matrix_s: NDArray[np.float64]
    prompt_s: NDArray[np.float64]
    decode_s: NDArray[np.float64]
    context_tokens: NDArray[np.float64]
    cell: NDArray[np.int32]


@dataclass(frozen=True)
class StepTimes:
    """Step times of a device, plan, workload and stack, tabulated up to the largest step that `build` was asked for.

    Exact at the nodes; between them straight lines. Against `dse.steps.evaluate` at a point: below 1e-9 for decode
    steps of the ideal model at full attention, below 1 % otherwise (`tests/test_step_times.py`). Mixed contexts count
    by their mean: exact where time is a straight line of the context, an overestimate where a window caps some of
    them. What is packed every G tokens counts at its mean over a group, as sequences stand at different places of it.
    """

    tables: Tables
    model_kind: str
    stack: str | None

    @property
    def max_sequences(self) -> int:
        """Most sequences of a step."""
        return len(self.tables.decode_s) - 1

    def matrix_s(self, n_tokens: int) -> float:
        """Seconds of the matrix products of a step over `n_tokens` tokens, of any sequences. 0 for none."""
        return float(self.tables.matrix_s[n_tokens])

    def prompt_s(self, first: int, last: int) -> float:
        """Seconds of attention and packing of a prompt's tokens first + 1 .. last, without matrix products."""
        return float(self.tables.prompt_s[last] - self.tables.prompt_s[first])

    def attention_s(self, n_sequences: int, context_tokens: int) -> float:
        """Seconds of attention, unpacking and packing of a decode step; `context_tokens` is the sum over sequences."""
        if not n_sequences:
            return 0.0
        mean = context_tokens / n_sequences
        cell = self.tables.cell[int(mean)]
        row, nodes = self.tables.decode_s[n_sequences], self.tables.context_tokens
        slope = (row[cell + 1] - row[cell]) / (nodes[cell + 1] - nodes[cell])
        return float(row[cell] + slope * (mean - nodes[cell]))

    def decode_step_s(self, n_sequences: int, context_tokens: int) -> float:
        """Seconds of a decode step of `n_sequences` whose contexts, the new tokens included, sum to `context_tokens`."""
        return self.matrix_s(n_sequences) + self.attention_s(n_sequences, context_tokens)

    def prefill_s(self, n_tokens: int) -> float:
        """Seconds of a whole prompt of one request, alone in its step."""
        return self.matrix_s(n_tokens) + self.prompt_s(0, n_tokens)


def build(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    max_sequences: int,
    max_context_tokens: int,
    max_step_tokens: int | None = None,
) -> StepTimes:
    """The tables for steps of up to `max_sequences` and contexts up to `max_context_tokens` each.

    `work` gives the model kind, stack, weights' bits and dequantisation path; its batch and lengths are not used and
    its prefix counts as none. `max_step_tokens`: most tokens of a step (default: the longest context or all sequences).
    Takes about 0.2 ms per node, some thousand nodes. Raises what `dse.point.stack_of` and `dequant_paths` raise.
    """
    paths = point.dequant_paths(device, plan, work)
    stack_name, stack = point.stack_of(device, work)
    longest = max(max_context_tokens, MIN_CONTEXT_TOKENS + 1)
    most_tokens = max(max_step_tokens or 0, longest, max_sequences)

    def at(n_sequences: int, input_tokens: int, output_tokens: int) -> steps.StepTimes:
        one = replace(work, input_tokens=input_tokens, output_tokens=output_tokens, prefix_tokens=0)
        return steps.evaluate(device, plan, one, n_sequences, paths, 0, Trace(), stack)

    token_nodes = _nodes(1, most_tokens, DENSE_TOKENS, TOKENS_RATIO)
    matrix = np.array([at(n, 1, 1).linear_s for n in token_nodes])
    # for prompts, nodes closer than the ratio would cost time and gain nothing: the curve has no kink but windows
    prompt_nodes = _nodes(1, longest, DENSE_SEQUENCES, TOKENS_RATIO, (g.window_tokens for g in plan.groups))
    prompt = np.array([at(1, n, 1).prefill_s - at(n, 1, 1).linear_s for n in prompt_nodes])

    period = max(g.step_tokens for g in plan.groups)
    windows = [w for g in plan.groups for w in (g.window_tokens, g.step_tokens + g.residual_tokens)]
    context_nodes = _nodes(MIN_CONTEXT_TOKENS, longest, 0, CONTEXT_RATIO, windows)
    # at peak rates all but launches grows with the number of sequences: two nodes are exact
    dense = DENSE_SEQUENCES if stack else 0
    sequence_nodes = _nodes(1, max_sequences, dense, SEQUENCES_RATIO if stack else math.inf)

    def rest(n_sequences: int, context: int) -> float:
        half = min(period // 2, context - MIN_CONTEXT_TOKENS)
        step = at(n_sequences, context - half - 1, max(2 * half, 1))
        return step.decode_step_s - step.linear_s

    measured = np.array([[rest(n, c) for c in context_nodes] for n in sequence_nodes])
    every = np.arange(1, max_sequences + 1)
    decode = np.zeros((max_sequences + 1, len(context_nodes)))
    for column in range(len(context_nodes)):
        decode[1:, column] = np.interp(every, sequence_nodes, measured[:, column])
    cell = np.searchsorted(context_nodes, np.arange(longest + 1), side="right") - 1
    tables = Tables(
        np.concatenate(([0.0], np.interp(np.arange(1, most_tokens + 1), token_nodes, matrix))),
        np.concatenate(([0.0], np.interp(np.arange(1, longest + 1), prompt_nodes, prompt))),
        decode,
        np.array(context_nodes, np.float64),
        np.clip(cell, 0, len(context_nodes) - 2).astype(np.int32),
    )
    return StepTimes(tables, "calibrated" if stack else "ideal", stack_name)


def _nodes(first: int, last: int, dense: int, ratio: float, kinks: Iterable[int] = ()) -> list[int]:
    """Rising whole numbers from `first` to `last`: every one up to `dense`, then by `ratio`; kinks and neighbours too."""
    found = {first, last, *range(first, min(dense, last) + 1)}
    node = max(first, dense)
    while node < last:
        found.add(node)
        node = last if ratio == math.inf else max(node + 1, int(node * ratio))
    found.update(n for kink in kinks for n in (kink - 1, kink, kink + 1) if first < n < last)
    return sorted(found)
