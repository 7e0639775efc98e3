"""Serving simulated event by event: what every request waits for, what runs, what memory holds. Seeded, exact, fast.

Batching: `static` runs a batch until its longest answer ends, and keeps its places busy until then; `continuous`
replaces a finished request at once and computes a new prompt whole, while the others wait; `chunked` fills every step
up to `chunk` tokens with parts of prompts. Memory: `reserve` holds a request's final length from the start; `paged`
holds pages as it grows, leaves WATERMARK_FRAC of the memory free when it admits, and where pages run out sends the
youngest request back to the head of the line, to be computed again (as vLLM does by default; arXiv:2309.06180, 4.5).
Requests are served in order of arrival. Under `--dp-attention` each device is a group of its own: the next request goes
to the one with fewest, a step lasts as long as the slowest group needs, and one computes prompts while others decode.
The first token of an answer is known when its prompt is computed; all O decode steps are run for an answer of O tokens,
one more than servers need.

Where requests say what their prompts share (`Requests.blocks`), prompts stay in memory that nobody wants, as a radix
tree of which the blocks used longest ago go first, to host memory where there is some (`HostMemory`). Answers are not
kept: what traces name are the blocks of prompts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.core.errors import InputError, LimitError, show
from dse.core.field import check_whole
from dse.model.deployed import n_groups_of
from dse.model.kv_layout import KvPlan
from dse.model.lower import PAPER_STEP_TOKENS, check_traffic, with_admission
from dse.model.point import Point
from dse.serving import loop, prefix_steps, prefix_tree, step_times
from dse.serving.requests import MAX_TOKENS, Lengths, Requests
from dse.serving.steady_state import USUAL, Batching, Scheduler, with_batch
from dse.specs import workload
from dse.specs.device_and_model import HardwareSpec
from dse.specs.workload import Workload

Floats = NDArray[np.float64]
BATCHING = {"static": loop.STATIC, "continuous": loop.CONTINUOUS, "chunked": loop.CHUNKED}
#: share of the memory that admission leaves free: vLLM's block manager has 0.01
WATERMARK_FRAC = 0.01
MAX_REQUESTS = 20_000_000
#: moments kept of what runs and what memory holds
MAX_SAMPLES = 512
#: share of the requests after whose end a saturated run counts as warm
WARM_SHARE = 0.1
#: times between tokens are counted in steps of one percent, from a microsecond to hours
GAP_EDGES_S: Floats = np.asarray(1e-6 * 1.01 ** np.arange(2400), np.float64)
#: steps that a run takes in Python before it is compiled, which takes seconds: short runs end before
PLAIN_STEPS = 20_000
#: steps between two reports of progress
SLICE_STEPS = 100_000

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Simulation:
    """Outcome of a run. Seconds from the first arrival; arrays over the requests that ran, in order of arrival.

    Memory is that of a device: the mean over groups, and the most that one takes. `samples` has the columns time_s,
    running, waiting, used_bytes, tokens, cached_bytes: at most MAX_SAMPLES moments, evenly over the steps. Sums are
    exact; `gap_counts` counts tokens by the time since the one before, below each of GAP_EDGES_S.
    """

    requests: Requests
    start_s: Floats
    first_s: Floats
    finish_s: Floats
    n_rejected: int
    max_sequences: int
    n_tokens: int
    n_prompt_tokens: int
    n_preempted: int
    n_steps: int
    n_decode_steps: int
    n_prompt_steps: int
    busy_s: float
    prompt_attention_s: float
    mean_running: float
    peak_running: int
    mean_used_bytes: float
    peak_used_bytes: int
    free_bytes: int
    left_bytes: int
    gap_counts: NDArray[np.int64]
    mean_gap_s: float | None
    longest_gap_s: float
    #: tokens and requests per second, and requests that run in the mean, between warm and the last admission; None
    #: where that is no time at all
    saturated_tokens_per_s: float | None
    saturated_requests_per_s: float | None
    saturated_running: float | None
    samples: dict[str, Floats]
    #: of each prompt the tokens found on the device and in host memory, and what a cache without limit would find
    device_tokens: NDArray[np.int64]
    host_tokens: NDArray[np.int64]
    endless_tokens: NDArray[np.int64]
    #: how the tree of the first prompts grew
    steps: prefix_steps.PrefixSteps

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.finish_s.max())

    def ttft_s(self, own_s: float) -> Floats:
        """Time to first token of each request, with `own_s`, a server's own time before it."""
        return self.first_s - self.requests.arrival_s + own_s

    @property
    def tpot_s(self) -> Floats:
        """Time per output token of each request, mean over its tokens; an answer of one token has none."""
        tokens = self.requests.output_tokens
        return np.asarray(((self.finish_s - self.first_s) / tokens)[tokens > 1])

    def gap_s(self, share: float) -> float | None:
        """The time between two tokens of an answer that `share` of them do not exceed, up to one percent more."""
        n = int(self.gap_counts.sum())
        if n == 0:
            return None
        place = int(np.searchsorted(np.cumsum(self.gap_counts), np.ceil(share * n)))
        edge = float(GAP_EDGES_S[place]) if place < len(GAP_EDGES_S) else self.longest_gap_s
        return min(edge, self.longest_gap_s)


def run(
    device: HardwareSpec,
    plan: KvPlan,
    work: Workload,
    requests: Requests,
    scheduler: Scheduler = USUAL,
    times: step_times.StepTimes | None = None,
    progress: Progress | None = None,
    compiled: bool | None = None,
) -> Simulation:
    """Serve `requests`. `work` gives batch (most sequences at once), admission, page, weights' bits, path, model kind.

    A batch that is not given is what the server takes (`dse.serving.steady_state.with_batch`). A step with prompts
    takes up to `step_tokens`: chunked, those that decode among them; else of whole prompts, a longer one alone; by
    default continuous, as papers have it. Requests that do not fit alone are rejected and counted. `times`: step times
    made by `tables_for`, to share between runs. `compiled`: True or False forces it; the numbers are the same. Raises
    InputError where a value is out of range or no request fits, LimitError above MAX_REQUESTS.
    """
    n, host = len(requests.arrival_s), scheduler.host
    batching, step_tokens = check(n, scheduler)
    work = with_admission(device, work)
    if batching == "static" and work.admission == "paged":
        rule_admission = loop.RESERVE  # nothing is admitted later: pages are held to the end of the answer
    else:
        rule_admission = loop.RESERVE if work.admission == "reserve" else loop.PAGED
    served, memory, held = served_of(device, plan, work, requests)
    work = with_batch(device, plan, work, Lengths.of(served).moments, batching, served.blocks is not None)
    assert work.batch is not None
    capacity = memory.free_bytes * memory.unit
    n_groups = n_groups_of(work)
    places = most_sequences(work, held, capacity, len(served.arrival_s))
    times = times or tables_for(device, plan, work, served, step_tokens, places)
    rule = np.zeros(len(loop.RULE), np.int64)
    rule[loop.RULE.batching], rule[loop.RULE.admission] = BATCHING[batching], rule_admission
    rule[loop.RULE.max_batch] = min(n_groups * places, work.batch)
    rule[loop.RULE.step_tokens], rule[loop.RULE.page] = step_tokens, memory.page_tokens
    rule[loop.RULE.places] = places
    rule[loop.RULE.capacity], rule[loop.RULE.watermark] = capacity, int(capacity * WATERMARK_FRAC)
    rule[loop.RULE.warm_count] = max(int(len(served.arrival_s) * WARM_SHARE), 1)
    tree = prefix_tree.tree_of(served, memory.page_tokens)
    if served.blocks is not None:
        rule[loop.RULE.page_size] = page_size(plan, held)
    if host is not None:
        rule[loop.RULE.host_capacity] = min(host.capacity_bytes * memory.unit, 2**62)
        rule[loop.RULE.loads_beside] = host.is_beside
    state = new_state(served, rule, held, largest_pages(served, held, memory.page_tokens), n_groups, tree)
    if host is not None:
        unit_s = 1 / memory.unit / host.bandwidth_bytes_per_s
        state = state._replace(host_start_s=host.start_s, host_unit_s=unit_s)
    steps = prefix_steps.PrefixSteps(tree)
    with np.errstate(over="ignore"):
        while served.blocks is not None and not steps.is_done and not loop.run(state, times.tables, 1):
            steps.watch(state)
        is_done = False
        while not is_done:
            is_long = int(state.i[loop.COUNT.n_steps]) >= PLAIN_STEPS if compiled is None else compiled
            step, slice_steps = (loop.compiled(), SLICE_STEPS) if is_long else (loop.run, SLICE_STEPS // 100)
            is_done = step(state, times.tables, slice_steps)
            if progress and not is_done:
                progress(int(state.i[loop.COUNT.n_done]), len(served.arrival_s))
    return _simulation(state, served, n - len(served.arrival_s), memory, tree, steps)


def page_size(plan: KvPlan, held: NDArray[np.int64]) -> int:
    """Numerator units of every page. Raises InputError where pages differ, or hold a state: what is kept of a prompt
    then depends on where it ends."""
    sizes = np.unique(np.diff(held[1:])) if len(held) > 2 else held[1:]
    if len(sizes) > 1 or plan.model.state_bytes:
        raise InputError(
            f"model = {show(plan.model.name)} with {show(plan.quantizer_name)}: has windows, states or groups that "
            "wait to be packed, whose blocks are not alike: shared prompts are simulated where every layer keeps every "
            "token: give --prefix-cache off, or take fp16, fp8 or another model"
        )
    return int(sizes[0])


def check(n_requests: int, scheduler: Scheduler = USUAL) -> tuple[Batching, int]:
    """Batching and tokens of a step. Raises InputError or LimitError for what cannot be simulated."""
    batching = scheduler.batching or "continuous"
    step_tokens = PAPER_STEP_TOKENS if scheduler.step_tokens is None else scheduler.step_tokens
    if batching not in BATCHING:
        raise InputError(f"batching = {show(batching)}: must be one of {', '.join(BATCHING)}")
    check_whole("prompt-budget", step_tokens, 1, MAX_TOKENS)
    if n_requests < 1:
        raise InputError(f"requests = {show(n_requests)}: must be at least 1")
    if n_requests > MAX_REQUESTS:
        raise LimitError(f"requests = {n_requests:,}: at most {MAX_REQUESTS:,} are simulated at once")
    return batching, step_tokens


def served_of(
    device: HardwareSpec, plan: KvPlan, work: Workload, requests: Requests
) -> tuple[Requests, Point, NDArray[np.int64]]:
    """The requests that fit alone, with what they share where a prefix cache keeps it; the memory, and what it holds by
    pages. Raises InputError where none fits."""
    for name, values in (("input", requests.input_tokens), ("output", requests.output_tokens)):
        for end in (values.min(), values.max()):
            check_whole(name, int(end), 1, MAX_TOKENS)
    final = requests.input_tokens + requests.output_tokens
    memory = memory_of(device, plan, work, int(np.max(final)))
    held = held_memory(memory)
    fits = held[largest_pages(requests, held, memory.page_tokens)] <= memory.free_bytes * memory.unit
    if not fits.any():
        least = replace(work, input_tokens=int(final.min()) - 1, output_tokens=1)
        reason = Point(device, plan, least).infeasible_reason or "its memory is too small"
        raise InputError(f"device = {show(device.name)}: no request fits: {reason}")
    served = requests.take(fits)
    return served if work.prefix_cache != "off" else replace(served, blocks=None), memory, held


def memory_of(device: HardwareSpec, plan: KvPlan, work: Workload, longest_tokens: int) -> Point:
    """Memory for sequences of up to `longest_tokens` (2 or more)."""
    there = replace(work, input_tokens=max(longest_tokens - 1, 1), output_tokens=1)
    check_traffic(work)
    return Point(device, plan, there)


def held_memory(memory: Point) -> NDArray[np.int64]:
    """Numerator units that a sequence takes at most while it has k pages, k from 0 to one page beyond the longest.

    It falls where a group is packed: what a sequence no longer needs is free for others.
    """
    page, last = memory.page_tokens, memory.work.final_tokens
    n_pages = -(-last // page) + 1
    lengths = {1, *range(page, n_pages * page + 1, page), *range(1, n_pages * page + 1, page)}
    for g in memory.plan.groups:
        if g.step_tokens > 1:  # just before a group is packed
            lengths.update(range(g.step_tokens + g.residual_tokens - 1, n_pages * page + 1, g.step_tokens))
    at = sorted(lengths)
    if memory.own_bits(at[-1]) * workload.MAX_BATCH >= 2**63 and memory.free_bytes * memory.unit >= 2**62:
        raise LimitError(f"device = {show(memory.device.name)}: its memory is too large to count exactly")
    held = np.zeros(n_pages + 1, np.int64)
    np.maximum.at(held, -(-np.array(at) // page), np.array([memory.own_bits(n) for n in at]))
    return held


def largest_pages(requests: Requests, held: NDArray[np.int64], page_tokens: int) -> NDArray[np.int64]:
    """For each request the pages, from those of its prompt to those of its last token, at which `held` is largest.

    A table of the places of maxima over 1, 2, 4, ... pages: two of them cover any stretch.
    """
    first = -(-requests.input_tokens // page_tokens)
    last = -(-(requests.input_tokens + requests.output_tokens) // page_tokens)
    if (np.diff(held) >= 0).all():
        return last
    largest, level, width = last.copy(), np.arange(len(held)), 1
    n_pages = last - first + 1
    while True:
        mine = (n_pages >= width) & (n_pages < 2 * width)
        left, right = level[first[mine]], level[last[mine] - width + 1]
        largest[mine] = np.where(held[left] > held[right], left, right)
        if 2 * width > n_pages.max():
            return largest
        left, right = level[:-width], level[width:]
        level, width = np.where(held[left] > held[right], left, right), 2 * width


def most_sequences(work: Workload, held: NDArray[np.int64], capacity: int, n_requests: int) -> int:
    """Places of a group of the running batch: never more than there are requests or pages."""
    n_groups = n_groups_of(work)
    return max(min(-(-(work.batch or 1) // n_groups), n_requests, capacity // max(int(held[1:].min()), 1)), 1)


def tables_for(
    device: HardwareSpec, plan: KvPlan, work: Workload, requests: Requests, step_tokens: int, max_sequences: int
) -> step_times.StepTimes:
    """Step times that a run of these requests looks up."""
    longest = int(np.max(requests.input_tokens + requests.output_tokens))
    most_tokens = max(step_tokens, max_sequences)
    lengths = np.unique(requests.input_tokens)
    exact_at = [int(n) for n in lengths] if len(lengths) <= step_times.MAX_LENGTHS else []
    return step_times.build(step_times.Exact.of(device, plan, work), max_sequences, longest, most_tokens, exact_at)


def times_of(
    device: HardwareSpec, plan: KvPlan, work: Workload, requests: Requests, scheduler: Scheduler = USUAL
) -> step_times.StepTimes:
    """Step times for runs of parts of these requests, each on a server of its own. Raises what `run` raises."""
    batching, step_tokens = check(len(requests.arrival_s), scheduler)
    work = with_admission(device, work)
    served, memory, held = served_of(device, plan, work, requests)
    work = with_batch(device, plan, work, Lengths.of(served).moments, batching, served.blocks is not None)
    places = most_sequences(work, held, memory.free_bytes * memory.unit, len(served.arrival_s))
    return tables_for(device, plan, work, served, step_tokens, places)


def new_state(
    requests: Requests,
    rule: NDArray[np.int64],
    held: NDArray[np.int64],
    largest: NDArray[np.int64],
    n_groups: int,
    tree: prefix_tree.PrefixTree,
) -> loop.State:
    """Nothing has arrived yet."""
    n, places, page = len(requests.arrival_s), int(rule[loop.RULE.places]), int(rule[loop.RULE.page])
    i, group = np.zeros(len(loop.COUNT), np.int64), np.zeros((n_groups, len(loop.GROUP)), np.int64)
    i[loop.COUNT.sample_every] = 1
    group[:, loop.GROUP.n_free], group[:, loop.GROUP.partial], group[:, loop.GROUP.is_open] = places, loop.NONE, 1

    def numbers(size: int | tuple[int, int], value: int = 0) -> NDArray[np.int64]:
        return np.full(size, value, np.int64)

    every, n_nodes = n_groups * places, len(tree.pages)
    rings = ("idle_next", "idle_before", "host_next", "host_before")
    arrays: dict[str, Any] = {
        name: numbers(every, loop.NONE)
        for name in ("finish_next", "finish_before", "page_next", "page_before", "older", "younger")
    }
    arrays |= {name: numbers(every) for name in ("again", "request", "pages", "offset", "joined_at")}
    arrays |= {name: numbers((n_groups, n_nodes + 1), n_nodes) for name in rings}
    arrays |= {name: np.zeros(n) for name in ("start_s", "first_s", "finish_s", "last_s")}
    return loop.State(
        **arrays,
        rule=rule,
        i=i,
        f=np.zeros(len(loop.CLOCK)),
        group=group,
        group_s=np.zeros((n_groups, len(loop.GROUP_TIME))),
        arrival_s=np.ascontiguousarray(requests.arrival_s, np.float64),
        input_tokens=np.ascontiguousarray(requests.input_tokens, np.int64),
        output_tokens=np.ascontiguousarray(requests.output_tokens, np.int64),
        held=held,
        largest_pages=largest,
        generated=numbers(n),
        node_first=tree.first,
        nodes=tree.nodes,
        node_pages=tree.pages,
        node_end=tree.end_tokens,
        users=numbers((n_groups, n_nodes), loop.NONE),
        in_host=np.zeros((n_groups, n_nodes), np.bool_),
        host_start_s=0.0,
        host_unit_s=0.0,
        device_tokens=numbers(n, loop.NONE),
        host_tokens=numbers(n),
        begun=numbers(every),
        is_new=np.zeros(every, np.bool_),
        finish_first=numbers((n_groups, int(requests.output_tokens.max()) + 1), loop.NONE),
        page_first=numbers((n_groups, page), loop.NONE),
        youngest=numbers((n_groups, 1), loop.NONE),
        free=np.arange(every).reshape(n_groups, places)[:, ::-1].copy(),
        new=numbers((n_groups, places + 1)),
        joined=numbers((n_groups, places + 1)),
        gap_edges_s=GAP_EDGES_S,
        gap_counts=numbers(len(GAP_EDGES_S) + 1),
        sample=np.zeros((len(loop.SAMPLE), MAX_SAMPLES)),
    )


def _simulation(
    s: loop.State,
    served: Requests,
    n_rejected: int,
    memory: Point,
    tree: prefix_tree.PrefixTree,
    steps: prefix_steps.PrefixSteps,
) -> Simulation:
    i, f = [int(value) for value in s.i], [float(value) for value in s.f]
    n_gaps = int(s.gap_counts.sum())
    window_s = f[loop.CLOCK.full_at] - f[loop.CLOCK.warm_at]
    saturated = window_s > 0 and i[loop.COUNT.warm_done] > 0
    samples = s.sample[:, : i[loop.COUNT.n_samples]].copy()
    samples[loop.SAMPLE.used] /= memory.unit * len(s.group)
    samples[loop.SAMPLE.cached] /= memory.unit * len(s.group)
    names = ("time_s", "running", "waiting", "used_bytes", "tokens", "cached_bytes")
    return Simulation(
        requests=served,
        start_s=s.start_s,
        first_s=s.first_s,
        finish_s=s.finish_s,
        n_rejected=n_rejected,
        max_sequences=int(s.rule[loop.RULE.max_batch]),
        n_tokens=i[loop.COUNT.tokens],
        n_prompt_tokens=i[loop.COUNT.prompt_tokens],
        n_preempted=i[loop.COUNT.n_preempted],
        n_steps=i[loop.COUNT.n_steps],
        n_decode_steps=i[loop.COUNT.n_decode_steps],
        n_prompt_steps=i[loop.COUNT.n_prompt_steps],
        busy_s=f[loop.CLOCK.busy],
        prompt_attention_s=f[loop.CLOCK.prompt_s],
        mean_running=f[loop.CLOCK.running_s] / float(s.finish_s.max()),
        peak_running=i[loop.COUNT.peak_running],
        mean_used_bytes=f[loop.CLOCK.used_s] / float(s.finish_s.max()) / (memory.unit * len(s.group)),
        peak_used_bytes=memory.to_bytes(i[loop.COUNT.peak_used]),
        free_bytes=memory.free_bytes,
        left_bytes=memory.to_bytes(i[loop.COUNT.used]),
        gap_counts=s.gap_counts,
        mean_gap_s=f[loop.CLOCK.gaps_s] / n_gaps if n_gaps else None,
        longest_gap_s=f[loop.CLOCK.longest_gap],
        saturated_tokens_per_s=(i[loop.COUNT.full_tokens] - i[loop.COUNT.warm_tokens]) / window_s
        if saturated
        else None,
        saturated_requests_per_s=(i[loop.COUNT.full_done] - i[loop.COUNT.warm_done]) / window_s if saturated else None,
        saturated_running=(f[loop.CLOCK.full_running] - f[loop.CLOCK.warm_running]) / window_s if saturated else None,
        samples={name: samples[row] for row, name in enumerate(names)},
        device_tokens=s.device_tokens,
        host_tokens=s.host_tokens,
        endless_tokens=tree.endless_tokens,
        steps=steps,
    )
