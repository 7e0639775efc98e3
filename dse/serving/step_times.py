"""Seconds of one step that serves requests of different lengths: decoding, whole prompts, or parts of them.

A step is what `dse.model.step.step_s` says: the products of all its tokens, attention and packing of the sequences that
decode, by how many they are and their mean context, attention and packing of prompt tokens, by where in the prompt they
stand. What starts once in a step counts once, whoever is in it.

Under `--dp-attention` all counts are those of one group, with as much in each of the others. Where groups differ,
weights that are shared meet the tokens of all, and attention's own those of the largest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from dse.model.deployed import n_groups_of
from dse.model.generation import Generation, generation_of
from dse.model.kv_layout import KvPlan
from dse.model.lower import check_traffic
from dse.model.point import Point
from dse.model.records import Design
from dse.model.stacks import kind_of
from dse.model.step import (
    Run,
    StepWork,
    Terms,
    exchanges_s,
    experts_s,
    own_products_s,
    run_of,
    share_touched,
    step_s,
    terms_of,
    weight_read_s,
)
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
#: prompts of so many different lengths are nodes of the table over prompts
MAX_LENGTHS = 64


#: a column, or the seconds in it
Value = TypeVar("Value", int, float)


class OfTokens(NamedTuple, Generic[Value]):
    """Columns of `StepTables.tokens`, or the seconds in them: of a pass over so many tokens."""

    #: weights read
    read: Value
    #: routed experts, where they were measured apart
    experts: Value
    #: results that devices exchange, whether of prompts or of decoding
    exchange: Value
    #: products with attention's own weights, where requests lie in groups
    attention_weights: Value


class OfPrompt(NamedTuple, Generic[Value]):
    """Columns of `StepTables.prompt`, or the seconds in them: of the first so many tokens of a prompt."""

    attention: Value
    packing: Value
    #: packing by engines, beside the products and attention
    engine: Value
    #: starts of the kernels that pack, in each step
    launch: Value


TOKENS: OfTokens[int] = OfTokens._make(range(len(OfTokens._fields)))
PROMPT: OfPrompt[int] = OfPrompt._make(range(len(OfPrompt._fields)))


class StepTables(NamedTuple):
    """`StepTimes` as arrays, for compiled code (numba takes a NamedTuple of arrays)."""

    terms: Terms
    tokens: NDArray[np.float64]
    prompt: NDArray[np.float64]
    #: by sequences and contexts: attention, unpacking and packing of a decode step, and the energy of attention
    decode_s: NDArray[np.float64]
    decode_joules: NDArray[np.float64]
    context_tokens: NDArray[np.float64]
    cell: NDArray[np.int32]
    #: results that devices exchange for so many decoding sequences alone
    decode_exchange_s: NDArray[np.float64]
    #: cores that each work on a token of a decode step; 0: all work on any
    wide_tokens: int
    #: a step with prompts is started kernel by kernel, which keeps all waiting
    blocks_s: float


class Asked(NamedTuple):
    """A step of a group of requests, and of all groups together."""

    #: means over groups: tokens, those that meet the output head, and those of sequences that decode
    n_tokens: int
    n_last: int
    n_decoding: int
    #: tokens of the fullest group
    most_tokens: int
    #: 1 where any group works on a prompt
    has_prompts: int
    #: of this group: sequences that decode, and the sum of their contexts, new tokens included
    own_decoding: int
    own_context: int
    #: of this group: prompts that end, and sums over the parts of prompts, as `OfPrompt`
    n_ended: int
    attention_s: float
    packing_s: float
    engine_s: float
    launch_s: float


def between_contexts(tables: StepTables, values: NDArray[np.float64], n_sequences: int, context_tokens: int) -> float:
    """A table by sequences and contexts at the mean of contexts that add up to `context_tokens`; n_sequences >= 1."""
    mean = context_tokens / n_sequences
    cell = tables.cell[int(mean)]
    row, nodes = values[n_sequences], tables.context_tokens
    slope = (row[cell + 1] - row[cell]) / (nodes[cell + 1] - nodes[cell])
    return row[cell] + slope * (mean - nodes[cell])


def asked_s(tables: StepTables, asked: Asked) -> float:
    """Seconds of a step from the tables, for compiled code."""
    terms, row = tables.terms, tables.tokens[asked.n_tokens]
    peak = terms.product_peak_per_s
    if asked.has_prompts == 0 and asked.n_tokens < tables.wide_tokens:
        peak *= asked.n_tokens / tables.wide_tokens
    apart_s = row[TOKENS.experts]
    if asked.most_tokens > asked.n_tokens:
        apart_s += tables.tokens[asked.most_tokens, TOKENS.attention_weights] - row[TOKENS.attention_weights]
    decode_s = decode_joules = 0.0
    if asked.own_decoding > 0:
        decode_s = between_contexts(tables, tables.decode_s, asked.own_decoding, asked.own_context)
        if terms.limit_w > 0.0:
            decode_joules = between_contexts(tables, tables.decode_joules, asked.own_decoding, asked.own_context)
    work = StepWork(
        n_tokens=float(asked.n_tokens),
        n_last=float(asked.n_last),
        n_decoding=float(asked.own_decoding),
        read_s=row[TOKENS.read],
        peak=peak,
        apart_s=apart_s,
        exchange_s=row[TOKENS.exchange] + tables.decode_exchange_s[asked.n_decoding],
        decode_s=decode_s,
        decode_joules=decode_joules,
        attention_s=asked.attention_s,
        packing_s=asked.packing_s,
        engine_s=asked.engine_s,
        launch_s=asked.launch_s,
    )
    seconds = step_s(work, terms) + min(asked.n_ended, 1) * tables.blocks_s
    return seconds * terms.token_time if asked.own_decoding > 0 else seconds


class PromptPart(NamedTuple):
    """Tokens first + 1 .. last of a prompt, which a step computes; `ends` where these are its last."""

    first: int
    last: int
    ends: bool = True


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

    def step_s(
        self,
        n_decoding: int = 0,
        context_tokens: int = 0,
        parts: Sequence[PromptPart] = (),
        others: Sequence[tuple[int, int, int]] = (),
    ) -> float:
        """Seconds of a step: `n_decoding` sequences whose contexts add up to `context_tokens`, new tokens included, and
        parts of prompts.

        Where requests lie in groups, that is one of them; of the `others` prompt tokens, decoding sequences and
        prompts that end.
        """
        groups = [(sum(p.last - p.first for p in parts), n_decoding, sum(p.ends for p in parts)), *others]
        n_tokens = [tokens + decoding for tokens, decoding, _ in groups]
        sums, prompt = [0.0, 0.0, 0.0, 0.0], self.tables.prompt
        for part in parts:
            for column in PROMPT[:3]:
                sums[column] += prompt[part.last, column] - prompt[part.first, column]
            sums[PROMPT.launch] = max(sums[PROMPT.launch], prompt[part.last, PROMPT.launch])
        of_prompts = dict(zip(("attention_s", "packing_s", "engine_s", "launch_s"), sums, strict=True))
        asked = Asked(
            n_tokens=-(-sum(n_tokens) // len(groups)),
            n_last=-(-sum(decoding + ended for _, decoding, ended in groups) // len(groups)),
            n_decoding=-(-sum(decoding for _, decoding, _ in groups) // len(groups)),
            most_tokens=max(n_tokens),
            has_prompts=int(any(tokens for tokens, *_ in groups)),
            own_decoding=n_decoding,
            own_context=context_tokens,
            n_ended=groups[0][2],
            **of_prompts,
        )
        return float(asked_s(self.tables, asked))


@dataclass(frozen=True)
class Exact:
    """Step times straight from the model; `build` makes tables."""

    point: Point
    #: what no number of sequences changes, by lengths: dearer than the rest
    _made: dict[tuple[int, int], tuple[Design, Generation, Terms]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(cls, device: HardwareSpec, plan: KvPlan, work: Workload) -> "Exact":
        """`work` gives model kind, stack, weights' bits and dequantization path; its batch and lengths do not count.

        Raises InputError for a workload that traffic does not know, and what `Point` raises.
        """
        check_traffic(work)
        return cls(Point(device, plan, work))

    def run(self, n_sequences: int, input_tokens: int, output_tokens: int) -> Run:
        """`n_sequences` of these lengths that run together, whether or not they fit."""
        if (key := (input_tokens, output_tokens)) not in self._made:
            design = self.point.design._replace(input_tokens=input_tokens, output_tokens=output_tokens)
            made = generation_of(design)
            self._made[key] = design, made, terms_of(design, made)
        run: Run = run_of(*self._made[key], n_sequences)
        return run

    def own_s(self, n_tokens: int) -> float:
        """Seconds of the products with weights that meet only the tokens of a device's own requests."""
        return float(own_products_s(self.point.design, self.point.terms, float(n_tokens)))

    def step(self, n_sequences: int, context_tokens: int) -> Run:
        """A step in which every sequence reads `context_tokens` >= 2, and what its parts wait for.

        The mean over a packed group around that length, since sequences stand at different places of theirs.
        """
        half = min(self.period // 2, context_tokens - MIN_CONTEXT_TOKENS)
        return self.run(n_sequences, context_tokens - half - 1, max(2 * half, 1))

    @property
    def period(self) -> int:
        """Tokens that are packed together, of the layer with most."""
        return max(g.step_tokens for g in self.point.plan.groups)

    def of_tokens(self, n_tokens: int) -> OfTokens[float]:
        """Seconds of a pass over `n_tokens` >= 1 tokens, by column of `StepTables.tokens`."""
        design = self.point.design
        touched = share_touched(design, n_tokens)
        return OfTokens(
            read=weight_read_s(design, touched),
            experts=experts_s(design, float(n_tokens), touched),
            exchange=exchanges_s(design, n_tokens, 1),
            attention_weights=self.own_s(n_tokens) if n_groups_of(self.point.work) > 1 else 0.0,
        )

    def of_prompt(self, n_tokens: int) -> OfPrompt[float]:
        """Seconds of the first `n_tokens` >= 1 of a prompt, by column of `StepTables.prompt`."""
        design = self.point.design._replace(input_tokens=n_tokens, output_tokens=1)
        terms = terms_of(design, generation_of(design))
        prompt = terms.prompt
        return OfPrompt(
            attention=prompt.own_flops / (terms.prompt_flops_frac * terms.peak_flops_per_s),
            packing=prompt.own_fused_s + prompt.own_materialised_s,
            engine=prompt.own_engine_s,
            launch=prompt.launch_s,
        )

    def of_decoding(self, n_sequences: int, context_tokens: int) -> tuple[float, float]:
        """Seconds and J of attention as `StepTables.decode_s` and `decode_joules` have them."""
        run, terms = self.step(n_sequences, context_tokens), self.point.terms
        joules = run.attention_read_s * terms.kv_w
        joules += run.attention_compute_s * terms.attention_flops_frac * terms.attention_w
        seconds = run.wave.attention_s + run.wave.quantize_s + run.wave.dequantize_s
        return seconds / terms.token_time, joules

    def decode_exchange_s(self, n_sequences: int) -> float:
        """Seconds in which results are exchanged for decoding sequences alone."""
        design = self.point.design
        return float(exchanges_s(design, n_sequences, 0) - exchanges_s(design, n_sequences, 1))


def build(
    exact: Exact, max_sequences: int, max_context_tokens: int, max_step_tokens: int = 0, lengths: Iterable[int] = ()
) -> StepTimes:
    """The tables for steps of up to `max_sequences` and contexts up to `max_context_tokens` each.

    `max_step_tokens`: most tokens of a step, where that is more than the longest context and than all sequences.
    `lengths`: of prompts, at which the table is exact. Some hundred to thousand calls of `exact`: a few tenths of a
    second.
    """
    longest = max(max_context_tokens, MIN_CONTEXT_TOKENS + 1)
    most_tokens = max(max_step_tokens, longest, max_sequences)
    point, groups = exact.point, exact.point.plan.groups
    terms = point.terms
    # nothing but products, which are no table, changes with the tokens
    is_plain = not point.design.exchanges and not terms.has_experts and n_groups_of(point.work) == 1
    token_nodes = [1, most_tokens] if is_plain else _nodes(1, most_tokens, DENSE_TOKENS, TOKENS_RATIO, lengths)
    # where windows fill and packing begins
    kinks = [at for g in groups for at in (g.window_tokens, g.step_tokens + g.residual_tokens)]
    prompt_nodes = _nodes(1, longest, DENSE_SEQUENCES, TOKENS_RATIO, [*kinks, *lengths])
    context_nodes = _nodes(MIN_CONTEXT_TOKENS, longest, 0, CONTEXT_RATIO, kinks)
    # at peak rates all but launches, and what engines hide behind other requests, grows with the number of sequences
    straight = point.stack is None and "engine" not in point.paths.values() and terms.same_from == 1
    sequence_nodes = [1, max_sequences] if straight else _nodes(1, max_sequences, DENSE_SEQUENCES, SEQUENCES_RATIO)
    rest = np.array([[exact.of_decoding(n, c) for c in context_nodes] for n in sequence_nodes])
    decode = [_columns(max_sequences, sequence_nodes, rest[:, :, kind].tolist()) for kind in range(2)]
    cell = np.searchsorted(context_nodes, np.arange(longest + 1), side="right") - 1
    tables = StepTables(
        terms=_typed(terms),
        tokens=_columns(most_tokens, token_nodes, [exact.of_tokens(n) for n in token_nodes]),
        prompt=_columns(longest, prompt_nodes, [exact.of_prompt(n) for n in prompt_nodes]),
        decode_s=decode[0],
        decode_joules=decode[1] if terms.limit_w else decode[1][:1],
        context_tokens=np.array(context_nodes, np.float64),
        cell=np.clip(cell, 0, len(context_nodes) - 2).astype(np.int32),
        decode_exchange_s=np.array([0.0, *map(exact.decode_exchange_s, range(1, max_sequences + 1))]),
        wide_tokens=max(point.design.device.token_cores, point.design.device.array_rows),
        blocks_s=float(point.design.stack.host_blocks_s),
    )
    return StepTimes(tables, kind_of(point.stack, point.work), point.stack_name)


def _lines(last: int, nodes: Sequence[int], values: Any) -> NDArray[np.float64]:
    """Values at 0 .. `last`: 0 at 0, straight lines between the nodes."""
    return np.concatenate(([0.0], np.interp(np.arange(1, last + 1), nodes, values)))


def _columns(last: int, nodes: Sequence[int], rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """A table of rows 0 .. `last` from those at the nodes."""
    return np.stack([_lines(last, nodes, values) for values in np.array(rows, np.float64).T], axis=1)


def _typed(record: Any) -> Any:
    """A record whose numbers are what it says they are: compiled code is made anew for other types."""
    hints = get_type_hints(type(record))
    return record._make(
        hints[name](value) if hints[name] in (int, float) else _typed(value) for name, value in record._asdict().items()
    )


def _nodes(first: int, last: int, dense: int, ratio: float, kinks: Iterable[int] = ()) -> list[int]:
    """Rising whole numbers from `first` to `last`: all up to `dense`, then by `ratio`; kinks and their neighbours."""
    nodes = {first, last, *range(first, min(dense, last) + 1)}
    node = max(first, dense)
    while node < last:
        nodes.add(node)
        node = max(node + 1, int(node * ratio))
    nodes.update(n for kink in kinks for n in (kink - 1, kink, kink + 1) if first < n < last)
    return sorted(nodes)
