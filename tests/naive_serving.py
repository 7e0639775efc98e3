"""The serving loop written again with lists and loops over every request: slow, plain, no list kept by step."""

import math
from dataclasses import dataclass, field

from dse.serving.step_times import PromptPart


@dataclass
class Request:
    """What happens to one request."""

    number: int
    arrival: float
    n_in: int
    n_out: int
    made: int = 0  # tokens of the answer so far
    computed: int = 0  # tokens of prompt and answer whose keys and values are there
    start: float = math.nan
    first: float = math.nan
    finish: float = math.nan
    last: float = math.nan
    pages: int = 0
    begun: int = 0  # tokens found when it was admitted last
    on_device: int = -1  # tokens found when it was admitted first
    in_host: int = 0
    endless: int = 0  # tokens found where nothing is ever given up

    @property
    def to_compute(self):
        return self.n_in + self.made


@dataclass
class Run:
    requests: list
    gaps: list = field(default_factory=list)
    n_preempted: int = 0
    n_steps: int = 0
    n_decode_steps: int = 0
    n_prompt_steps: int = 0
    prompt_tokens: int = 0
    n_tokens: int = 0
    n_done: int = 0
    peak_used: int = 0
    peak_running: int = 0
    left: int = 0
    busy_s: float = 0.0
    attention_s: float = 0.0
    running_s: float = 0.0
    used_s: float = 0.0
    # time, tokens, requests done and request seconds, when a tenth was done and when the last was admitted
    warm: tuple = ()
    full: tuple = ()
    samples: list = field(default_factory=list)  # of every step

    def so_far(self, now):
        return now, self.n_tokens, self.n_done, self.running_s


class Group(list):
    """Requests that run, and the blocks of prompts that are kept: paths from the root, oldest first where unused."""

    def __init__(self):
        super().__init__()
        self.users = {}  # path -> how many use it
        self.idle = []
        self.host = []
        self.load_s = 0.0


def serve(
    arrivals,
    inputs,
    outputs,
    times,
    own,
    capacity,
    *,
    batching,
    admission,
    batch,
    page,
    chunk,
    prompt_step,
    n_groups=1,
    blocks=None,
    page_size=0,
    host_capacity=0,
    host_start_s=0.0,
    host_unit_s=0.0,
    beside=True,
):
    """`own(n)` is what a sequence of n tokens takes; held is the most it takes while it has so many pages.

    Memory, chunk and prompt step are those of a group; all groups step together. `blocks`: of each request the ids and
    ends of its blocks. A path is known by its ids; `page_size` is what a page takes.
    """
    requests = [Request(*row) for row in zip(range(len(arrivals)), arrivals, inputs, outputs, strict=True)]
    run = Run(requests)

    def pages(n_tokens):
        return math.ceil(n_tokens / page)

    def held(n_pages):
        return max([own(n) for n in range((n_pages - 1) * page + 1, n_pages * page + 1)], default=0)

    def all_pages(r):
        """The pages between prompt and last token at which it takes most; of equal ones the last."""
        return max(range(pages(r.n_in), pages(r.n_in + r.n_out) + 1), key=lambda k: (held(k), k))

    def paths(r):
        """Path, pages and whole pages' end of each block."""
        ids, ends = blocks[r.number] if blocks else ([], [])
        whole = [end // page for end in ends]
        return [
            (
                tuple(zip(ids[: k + 1], ends[: k + 1], strict=True)),
                whole[k] - (whole[k - 1] if k else 0),
                whole[k] * page,
            )
            for k in range(len(ids))
        ]

    seen = set()
    for r in requests:
        r.endless = max((end for path, _, end in paths(r) if path in seen and end < r.n_in), default=0)
        seen.update(path for path, *_ in paths(r))
    sizes = {path: n_pages * page_size for r in requests for path, n_pages, _ in paths(r)}

    def reach(group, r):
        found = 0
        for path, _, end in paths(r):
            if end >= r.to_compute or (path not in group.users and path not in group.host):
                break
            found = end
        return found

    def to_host(group, path):
        if path in group.host:
            group.host.remove(path)
        group.host.append(path)
        while sum(sizes[one] for one in group.host) > host_capacity:
            group.host.pop(0)

    def evict(group):
        while used(group) + sum(sizes[path] for path in group.idle) > capacity:
            path = group.idle.pop(0)
            del group.users[path]
            if host_capacity:
                to_host(group, path)

    def share(group, r):
        r.begun, load, on_device = reach(group, r), 0, 0
        for path, _, end in reversed(paths(r)):
            if path in group.users:
                on_device = max(on_device, end if end <= r.begun else 0)
            elif end <= r.begun:
                load += sizes[path]
                to_host(group, path)
            if path in group.idle:
                group.idle.remove(path)
            group.users[path] = group.users.get(path, 0) + 1
        if load:
            group.load_s += host_start_s + host_unit_s * load
        if r.on_device < 0:
            r.on_device, r.in_host = on_device, r.begun - on_device

    def unshare(group, r, n_computed):
        for path, _, end in reversed(paths(r)):
            group.users[path] -= 1
            if not group.users[path]:
                if end > n_computed:
                    del group.users[path]
                else:
                    group.idle.append(path)

    def used(group):
        total = sum(held(r.pages) - sum(sizes[path] for path, *_ in paths(r)) for r in group)
        total += sum(sizes[path] for path, n in group.users.items() if n)
        run.peak_used = max(run.peak_used, total)
        return total

    def decoding(group):
        return [r for r in group if r.computed >= r.to_compute]

    def make_room(group):
        """True where the youngest had to go."""
        sent_back = False
        while True:
            growing = [r for r in decoding(group) if r.computed % page == 0]
            extra = sum(held(r.pages + 1) - held(r.pages) for r in growing)
            if used(group) + extra <= capacity:
                break
            youngest = group.pop()
            unshare(group, youngest, min(youngest.computed, youngest.n_in))
            youngest.computed = youngest.pages = 0
            line.insert(0, youngest)
            run.n_preempted += 1
            sent_back = True
        for r in growing:
            r.pages += 1
        used(group)
        evict(group)
        return sent_back

    def admit(group, now):
        n_places = math.ceil(batch / n_groups)
        if not line or len(group) == n_places or sum(map(len, groups)) == batch:
            return None
        r = line[0]
        need = all_pages(r) if reserve else pages(r.to_compute)
        room = capacity - used(group)
        if not reserve and group:
            room -= int(capacity * 0.01)
        if held(need) - sum(sizes[path] for path, *_ in paths(r) if group.users.get(path)) > room:
            return None
        line.pop(0)
        r.start = now if math.isnan(r.start) else r.start
        if not todo and not any(math.isnan(other.start) for other in line):
            run.full = run.full or run.so_far(now)
        share(group, r)
        r.pages, r.computed = need, r.begun
        group.append(r)
        run.peak_running = max(run.peak_running, sum(map(len, groups)))
        used(group)
        evict(group)
        return r

    now, line, todo = 0.0, [], list(requests)
    groups = [Group() for _ in range(n_groups)]
    is_open = [True] * n_groups
    reserve = admission == "reserve" or batching == "static"
    while any(math.isnan(r.finish) for r in requests):
        while todo and todo[0].arrival <= now:
            line.append(todo.pop(0))
        if not any(groups) and not line:
            now = todo[0].arrival
            continue
        parts = [[] for _ in groups]  # of each group: request, tokens
        for group in groups:
            group.load_s = 0.0
        batches = [decoding(group) for group in groups]
        if batching == "chunked":
            takes = [not (batches[g] and not reserve and make_room(groups[g])) for g in range(n_groups)]
            batches = [decoding(group) for group in groups]
            left = [chunk - len(own_batch) for own_batch in batches]

            def work_on(g, r, left=left, parts=parts):
                part = min(left[g], r.to_compute - r.computed)
                parts[g].append((r, part))
                left[g] -= part

            for g, group in enumerate(groups):
                for r in [r for r in group if r.computed < r.to_compute]:
                    if takes[g] and left[g] > 0:
                        work_on(g, r)
            while able := [g for g in range(n_groups) if takes[g] and left[g] > 0]:
                g = min(able, key=lambda g: len(groups[g]))
                r = admit(groups[g], now)
                takes[g] = r is not None
                if r is not None:
                    work_on(g, r)
        else:
            takes = [one or batching == "continuous" for one in is_open]
            tokens = [0] * n_groups
            while able := [g for g in range(n_groups) if takes[g] and tokens[g] < prompt_step]:
                g = min(able, key=lambda g: len(groups[g]))
                if tokens[g] and line and tokens[g] + line[0].to_compute - reach(groups[g], line[0]) > prompt_step:
                    takes[g] = False
                    continue
                r = admit(groups[g], now)
                if r is None:
                    takes[g] = False
                    continue
                tokens[g] += r.to_compute - r.begun
                parts[g].append((r, r.to_compute - r.begun))
            for g, group in enumerate(groups):
                if parts[g]:
                    batches[g] = []
                elif not reserve:
                    make_room(group)
                    batches[g] = decoding(group)
            is_open = [bool(own_parts) for own_parts in parts]
        n_prompt = [sum(part for _, part in own_parts) for own_parts in parts]
        work = [
            [PromptPart(r.computed, r.computed + part, r.computed + part == r.to_compute) for r, part in own_parts]
            for own_parts in parts
        ]
        counts = [
            (tokens, len(own_batch), sum(part.ends for part in own_parts))
            for tokens, own_batch, own_parts in zip(n_prompt, batches, work, strict=True)
        ]
        n_running, n_used = sum(map(len, groups)), sum(used(group) for group in groups)
        kept = sum(sizes[path] for group in groups for path in group.idle)
        run.samples.append((now, n_running, len(line), n_used, run.n_tokens, kept))
        seconds = []
        for g in range(n_groups):
            for r in batches[g]:
                r.computed += math.isnan(r.finish)
            context = sum(r.computed for r in batches[g])
            step_s = times.step_s(len(batches[g]), context, work[g], counts[:g] + counts[g + 1 :])
            load_s = groups[g].load_s
            seconds.append(max(step_s, load_s) if beside else step_s + load_s)
        now += max(seconds)
        run.busy_s += max(seconds)
        run.running_s += max(seconds) * n_running
        run.used_s += max(seconds) * n_used
        run.attention_s += max(
            sum(times.tables.prompt[part.last, 0] - times.tables.prompt[part.first, 0] for part in own_parts)
            for own_parts in work
        )
        run.n_steps += 1
        run.n_prompt_steps += any(n_prompt)
        run.n_decode_steps += any(batches)
        run.prompt_tokens += sum(n_prompt)
        for g, group in enumerate(groups):
            live = [r for r in batches[g] if math.isnan(r.finish)]
            run.n_tokens += len(live)
            for r in live:
                r.made += 1
                run.gaps.append(now - r.last)
                r.last = now
                if r.made == r.n_out:
                    r.finish = now
                    run.n_done += 1
                    if run.n_done == max(len(requests) // 10, 1):
                        run.warm = run.so_far(now)
                    if batching != "static":
                        group.remove(r)
            for r in reversed(batches[g]):  # of those that end together the latest gives its blocks up first
                if r not in group:
                    unshare(group, r, r.n_in)
            if batching == "static" and batches[g] and all(not math.isnan(r.finish) for r in group):
                for r in reversed(group):
                    unshare(group, r, r.n_in)
                group.clear()
                is_open[g] = True
            for r, part in parts[g]:
                r.computed += part
                if r.computed == r.to_compute and math.isnan(r.first):
                    r.first = r.last = now
    run.left = sum(used(group) for group in groups)
    return run
