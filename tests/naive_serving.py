"""The serving loop written again with lists and loops over every request: slow, plain, no list kept by step."""

import math
from dataclasses import dataclass, field


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

    @property
    def to_compute(self):
        return self.n_in + self.made


@dataclass
class Run:
    requests: list
    gaps: list = field(default_factory=list)
    n_preempted: int = 0
    n_steps: int = 0
    prompt_tokens: int = 0
    peak_used: int = 0
    used: int = 0


def serve(
    arrivals, inputs, outputs, times, own, capacity, *, batching, admission, batch, page, chunk, prompt_step, n_groups=1
):
    """`own(n)` is what a sequence of n tokens takes; held is the most it takes while it has so many pages.

    Memory, chunk and prompt step are those of a group; all groups step together.
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

    def used(group):
        total = sum(held(r.pages) for r in group)
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
            youngest.computed = youngest.pages = 0
            line.insert(0, youngest)
            run.n_preempted += 1
            sent_back = True
        for r in growing:
            r.pages += 1
        used(group)
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
        if held(need) > room:
            return None
        line.pop(0)
        r.pages, r.computed = need, 0
        r.start = now if math.isnan(r.start) else r.start
        group.append(r)
        used(group)
        return r

    now, line, todo = 0.0, [], list(requests)
    groups = [[] for _ in range(n_groups)]
    is_open = [True] * n_groups
    reserve = admission == "reserve" or batching == "static"
    while any(math.isnan(r.finish) for r in requests):
        while todo and todo[0].arrival <= now:
            line.append(todo.pop(0))
        if not any(groups) and not line:
            now = todo[0].arrival
            continue
        parts = [[] for _ in groups]  # of each group: request, tokens
        prompt_s = [0.0] * n_groups
        batches = [decoding(group) for group in groups]
        if batching == "chunked":
            takes = [not (batches[g] and not reserve and make_room(groups[g])) for g in range(n_groups)]
            batches = [decoding(group) for group in groups]
            left = [chunk - len(own_batch) for own_batch in batches]

            def work_on(g, r, left=left, prompt_s=prompt_s, parts=parts):
                part = min(left[g], r.to_compute - r.computed)
                prompt_s[g] += times.prompt_s(r.computed, r.computed + part)
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
                if tokens[g] and line and tokens[g] + line[0].to_compute > prompt_step:
                    takes[g] = False
                    continue
                r = admit(groups[g], now)
                if r is None:
                    takes[g] = False
                    continue
                tokens[g] += r.to_compute
                prompt_s[g] += times.prompt_s(0, r.to_compute)
                parts[g].append((r, r.to_compute))
            for g, group in enumerate(groups):
                if parts[g]:
                    batches[g] = []
                elif not reserve:
                    make_room(group)
                    batches[g] = decoding(group)
            is_open = [bool(own_parts) for own_parts in parts]
        n_prompt = [sum(part for _, part in own_parts) for own_parts in parts]
        n_tokens = [a + len(b) for a, b in zip(n_prompt, batches, strict=True)]
        mean = math.ceil(sum(n_tokens) / n_groups)
        products_s = times.matrix_s(mean)
        if max(n_tokens) > mean:
            products_s += times.own_s(max(n_tokens)) - times.own_s(mean)
        seconds = []
        for g in range(n_groups):
            for r in batches[g]:
                r.computed += math.isnan(r.finish)
            rest = times.attention_s(len(batches[g]), sum(r.computed for r in batches[g])) if batches[g] else 0.0
            seconds.append(products_s + prompt_s[g] + rest)
        now += max(seconds)
        run.n_steps += 1
        run.prompt_tokens += sum(n_prompt)
        for g, group in enumerate(groups):
            for r in [r for r in batches[g] if math.isnan(r.finish)]:
                r.made += 1
                run.gaps.append(now - r.last)
                r.last = now
                if r.made == r.n_out:
                    r.finish = now
                    if batching != "static":
                        group.remove(r)
            if batching == "static" and batches[g] and all(not math.isnan(r.finish) for r in group):
                group.clear()
                is_open[g] = True
            for r, part in parts[g]:
                r.computed += part
                if r.computed == r.to_compute and math.isnan(r.first):
                    r.first = r.last = now
    return run
