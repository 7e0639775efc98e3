"""Seconds of one step that serves requests of different lengths: decoding, whole prompts, or parts of them.

A step is made of three things, each a table of what `dse.model.step.run_of` gives: the matrix products over all its
tokens, which decoding and prompts share; attention and packing of the sequences that decode, by how many they are and
their mean context; attention and packing of prompt tokens, by where in the prompt they stand.

Under `--dp-attention` all counts are those of one group, with as much in each of the others. Where groups differ,
weights that are shared meet the tokens of all, and attention's own those of the largest (`StepTables.own_s`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.model.deployed import n_groups_of
from dse.model.evaluate import Point
from dse.model.formulas import attention, weights
from dse.model.generation import generation_of
from dse.model.kv_layout import KvPlan
from dse.model.lower import check_traffic
from dse.model.stacks import kind_of
from dse.model.step import Run, product_peak, products_s, run_of, terms_of
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

#: every token count up to here is a node of the tables over tokens: roofs meet below it on all devices
DENSE_TOKENS = 512
#: nodes above it, and of contexts: each this much larger than the one before
TOKENS_RATIO = 1.03
CONTEXT_RATIO = 1.25
#: sequences: every count up to here, then a ratio
DENSE_SEQUENCES = 8
SEQUENCES_RATIO = 1.2
#: the shortest context that a step reads: a prompt of one token and the first token after it
MIN_CONTEXT_TOKENS = 2


class StepTables(NamedTuple):
    """`StepTimes` as arrays, for compiled code (numba takes a NamedTuple of arrays)."""

    matrix_s: NDArray[np.float64]
    #: of these, the products with attention's own weights; of one token where there are no groups
    own_s: NDArray[np.float64]
    prompt_s: NDArray[np.float64]
    decode_s: NDArray[np.float64]
    context_tokens: NDArray[np.float64]
    cell: NDArray[np.int32]


def attention_s(tables: StepTables, n_sequences: int, context_tokens: int) -> float:
    """`StepTimes.attention_s` from its tables, for compiled code; n_sequences >= 1."""
    mean = context_tokens / n_sequences
    cell = tables.cell[int(mean)]
    row, nodes = tables.decode_s[n_sequences], tables.context_tokens
    slope = (row[cell + 1] - row[cell]) / (nodes[cell + 1] - nodes[cell])
    return row[cell] + slope * (mean - nodes[cell])


@dataclass(frozen=True)
class StepTimes:
    """Step times of a device, plan, workload and stack, tabulated up to the largest step that `build` was asked for.

    Exact at the nodes; between them straight lines. Against `dse.model.step.run_of` at a point: below 1e-9 for decode
    steps of the ideal model at full attention, below 1 % otherwise (`tests/serving/test_step_times.py`). Mixed contexts
    count by their mean: exact where time is a straight line of the context, an overestimate where a window caps some of
    them. What is packed every G tokens counts at its mean over a group, as sequences stand at different places of it.
    """

    tables: StepTables
    model_kind: str
    stack: str | None

    @property
    def max_sequences(self) -> int:
        """Most sequences of a step."""
        return len(self.tables.decode_s) - 1

    def matrix_s(self, n_tokens: int) -> float:
        """Seconds of the matrix products of a step over `n_tokens` tokens, of any sequences. 0 for none."""
        return float(self.tables.matrix_s[n_tokens])

    def own_s(self, n_tokens: int) -> float:
        """Part of `matrix_s` for attention's own weights, where requests lie in groups."""
        return float(self.tables.own_s[n_tokens])

    def prompt_s(self, first: int, last: int) -> float:
        """Seconds of attention and packing of a prompt's tokens first + 1 .. last, without matrix products."""
        return float(self.tables.prompt_s[last] - self.tables.prompt_s[first])

    def attention_s(self, n_sequences: int, context_tokens: int) -> float:
        """Seconds of attention, unpacking and packing of a decode step; `context_tokens` is the sum over sequences."""
        return float(attention_s(self.tables, n_sequences, context_tokens)) if n_sequences else 0.0

    def decode_step_s(self, n_sequences: int, context_tokens: int) -> float:
        """Seconds of a decode step; `context_tokens` is the sum over sequences, the new tokens included."""
        return self.matrix_s(n_sequences) + self.attention_s(n_sequences, context_tokens)

    def prefill_s(self, n_tokens: int) -> float:
        """Seconds of a whole prompt of one request, alone in its step."""
        return self.matrix_s(n_tokens) + self.prompt_s(0, n_tokens)


@dataclass(frozen=True)
class Exact:
    """Step times straight from the model, 0.5 ms for each that was not asked for before; `build` makes tables."""

    point: Point
    #: seconds of what was asked for: a search asks for the same steps again and again
    _matrix: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    _attention: dict[tuple[int, int], float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, device: HardwareSpec, plan: KvPlan, work: Workload) -> "Exact":
        """`work` gives model kind, stack, weights' bits and dequantization path; its batch and lengths do not count.

        Raises InputError for a workload that traffic does not know, and what `Point` raises.
        """
        check_traffic(work)
        return cls(Point(device, plan, work))

    def run(self, n_sequences: int, input_tokens: int, output_tokens: int) -> Run:
        """`n_sequences` of these lengths that run together, whether or not they fit."""
        design = self.point.design._replace(input_tokens=input_tokens, output_tokens=output_tokens)
        made = generation_of(design)
        run: Run = run_of(design, made, terms_of(design, made), n_sequences)
        return run

    def matrix_s(self, n_tokens: int) -> float:
        """Seconds of the matrix products over `n_tokens` >= 1 tokens."""
        if n_tokens not in self._matrix:
            self._matrix[n_tokens] = self.run(n_tokens, 1, 1).wave.linear_s
        return self._matrix[n_tokens]

    def own_s(self, n_tokens: int) -> float:
        """Part of `matrix_s` for weights that meet only the tokens of a device's own requests."""
        design, terms = self.point.design, self.point.terms
        own = self.point.plan.model.attention_parameters or 0
        kept = self.point.work.weight_format.kept_attention(self.point.plan.model)
        n_bytes = weights.weight_read_bytes(own, kept, 0, 1.0, design.load.dense_eighths, 0)
        read_s = attention.time_at_rate(n_bytes, terms.bandwidth_bytes_per_s) / design.stack.gemm_memory_frac
        only = terms._replace(active_parameters=float(own), head_parameters=0.0)
        seconds, _ = products_s(n_tokens, n_tokens, read_s, product_peak(design, n_tokens), only, terms.has_gemm)
        return float(seconds)

    def prompt_s(self, n_tokens: int) -> float:
        """Seconds of attention and packing of a whole prompt, without matrix products."""
        return self.run(1, n_tokens, 1).wave.prefill_s - self.matrix_s(n_tokens)

    def attention_s(self, n_sequences: int, context_tokens: int) -> float:
        """Seconds of attention, unpacking and packing of a step in which every sequence reads `context_tokens` >= 2.

        The mean over a packed group around that length, since sequences stand at different places of theirs.
        """
        at = (n_sequences, context_tokens)
        if at not in self._attention:
            wave = self.step(n_sequences, context_tokens).wave
            self._attention[at] = wave.decode_step_s - wave.linear_s
        return self._attention[at]

    def step(self, n_sequences: int, context_tokens: int) -> Run:
        """All of that step, and what its parts wait for."""
        half = min(self.period // 2, context_tokens - MIN_CONTEXT_TOKENS)
        return self.run(n_sequences, context_tokens - half - 1, max(2 * half, 1))

    @property
    def period(self) -> int:
        """Tokens that are packed together, of the layer with most."""
        return max(g.step_tokens for g in self.point.plan.groups)


def build(exact: Exact, max_sequences: int, max_context_tokens: int, max_step_tokens: int = 0) -> StepTimes:
    """The tables for steps of up to `max_sequences` and contexts up to `max_context_tokens` each.

    `max_step_tokens`: most tokens of a step, where that is more than the longest context and than all sequences.
    Some thousand calls of `exact`: a few tenths of a second.
    """
    longest = max(max_context_tokens, MIN_CONTEXT_TOKENS + 1)
    most_tokens = max(max_step_tokens, longest, max_sequences)
    groups, fitted = exact.point.plan.groups, exact.point.stack is not None
    token_nodes = _nodes(1, most_tokens, DENSE_TOKENS, TOKENS_RATIO)
    matrix = [exact.matrix_s(n) for n in token_nodes]
    own_nodes = token_nodes if n_groups_of(exact.point.work) > 1 else token_nodes[:1]
    own = [exact.own_s(n) for n in own_nodes]
    # where windows fill and packing begins
    kinks = [at for g in groups for at in (g.window_tokens, g.step_tokens + g.residual_tokens)]
    prompt_nodes = _nodes(1, longest, DENSE_SEQUENCES, TOKENS_RATIO, kinks)
    prompt = [exact.prompt_s(n) for n in prompt_nodes]
    context_nodes = _nodes(MIN_CONTEXT_TOKENS, longest, 0, CONTEXT_RATIO, kinks)
    # at peak rates all but launches, what engines hide behind other requests, and what a limit of power adds, grows
    # with the number of sequences
    straight = not fitted and "engine" not in exact.point.paths.values() and exact.point.terms.limit_w == 0
    sequence_nodes = [1, max_sequences] if straight else _nodes(1, max_sequences, DENSE_SEQUENCES, SEQUENCES_RATIO)
    rest = np.array([[exact.attention_s(n, c) for c in context_nodes] for n in sequence_nodes])
    decode = np.zeros((max_sequences + 1, len(context_nodes)))
    for column in range(len(context_nodes)):
        decode[1:, column] = np.interp(np.arange(1, max_sequences + 1), sequence_nodes, rest[:, column])
    cell = np.searchsorted(context_nodes, np.arange(longest + 1), side="right") - 1
    tables = StepTables(
        matrix_s=np.concatenate(([0.0], np.interp(np.arange(1, most_tokens + 1), token_nodes, matrix))),
        own_s=np.concatenate(([0.0], np.interp(np.arange(1, own_nodes[-1] + 1), own_nodes, own))),
        prompt_s=np.concatenate(([0.0], np.interp(np.arange(1, longest + 1), prompt_nodes, prompt))),
        decode_s=decode,
        context_tokens=np.array(context_nodes, np.float64),
        cell=np.clip(cell, 0, len(context_nodes) - 2).astype(np.int32),
    )
    return StepTimes(tables, kind_of(exact.point.stack, exact.point.work), exact.point.stack_name)


def _nodes(first: int, last: int, dense: int, ratio: float, kinks: Iterable[int] = ()) -> list[int]:
    """Rising whole numbers from `first` to `last`: all up to `dense`, then by `ratio`; kinks and their neighbours."""
    nodes = {first, last, *range(first, min(dense, last) + 1)}
    node = max(first, dense)
    while node < last:
        nodes.add(node)
        node = max(node + 1, int(node * ratio))
    nodes.update(n for kink in kinks for n in (kink - 1, kink, kink + 1) if first < n < last)
    return sorted(nodes)
