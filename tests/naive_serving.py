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


def serve(arrivals, inputs, outputs, times, own, capacity, *, batching, admission, batch, page, chunk, prompt_step):
    """`own(n)` is what a sequence of n tokens takes; held is the most it takes while it has so many pages."""
    requests = [Request(*row) for row in zip(range(len(arrivals)), arrivals, inputs, outputs, strict=True)]
    run = Run(requests)

    def pages(n_tokens):
        return math.ceil(n_tokens / page)

    def held(n_pages):
        return max([own(n) for n in range((n_pages - 1) * page + 1, n_pages * page + 1)], default=0)

    def all_pages(r):
        """The pages between prompt and last token at which it takes most; of equal ones the last."""
        return max(range(pages(r.n_in), pages(r.n_in + r.n_out) + 1), key=lambda k: (held(k), k))

    def used():
        total = sum(held(r.pages) for r in running)
        run.peak_used = max(run.peak_used, total)
        return total

    now, line, running, todo = 0.0, [], [], list(requests)
    static_open = True
    reserve = admission == "reserve" or batching == "static"
    while any(math.isnan(r.finish) for r in requests):
        while todo and todo[0].arrival <= now:
            line.append(todo.pop(0))
        if not running and not line:
            now = todo[0].arrival
            continue

        def admit(now=now):
            if not line or len(running) == batch:
                return None
            r = line[0]
            need = all_pages(r) if reserve else pages(r.to_compute)
            room = capacity - used()
            if not reserve and running:
                room -= int(capacity * 0.01)
            if held(need) > room:
                return None
            line.pop(0)
            r.pages, r.computed = need, 0
            r.start = now if math.isnan(r.start) else r.start
            running.append(r)
            used()
            return r

        def make_room():
            """True where the youngest had to go."""
            sent_back = False
            while True:
                growing = [r for r in decoding() if r.computed % page == 0]
                extra = sum(held(r.pages + 1) - held(r.pages) for r in growing)
                if used() + extra <= capacity:
                    break
                youngest = running.pop()
                youngest.computed = youngest.pages = 0
                line.insert(0, youngest)
                run.n_preempted += 1
                sent_back = True
            for r in growing:
                r.pages += 1
            used()
            return sent_back

        def decoding():
            return [r for r in running if r.computed >= r.to_compute]

        parts, prompt_s = [], 0.0
        batch_then = decoding()
        if batching == "chunked":
            sent_back = bool(batch_then) and not reserve and make_room()
            batch_then = decoding()
            left = chunk - len(batch_then)
            while left > 0 and not sent_back:
                partial = [r for r in running if r.computed < r.to_compute and r not in [p for p, _ in parts]]
                r = partial[0] if partial else admit()
                if r is None:
                    break
                part = min(left, r.to_compute - r.computed)
                prompt_s += times.prompt_s(r.computed, r.computed + part)
                parts.append((r, part))
                left -= part
        else:
            tokens = 0
            while (static_open or batching == "continuous") and tokens < prompt_step:
                if tokens and line and tokens + line[0].to_compute > prompt_step:
                    break
                r = admit()
                if r is None:
                    break
                tokens += r.to_compute
                prompt_s += times.prompt_s(0, r.to_compute)
                parts.append((r, r.to_compute))
            if parts:
                batch_then = []
            elif not reserve:
                make_room()
                batch_then = decoding()
            static_open = bool(parts)
        n_tokens = sum(part for _, part in parts)
        seconds = times.matrix_s(n_tokens + len(batch_then)) + prompt_s
        live = [r for r in batch_then if math.isnan(r.finish)]
        for r in live:
            r.computed += 1
        if batch_then:
            seconds += times.attention_s(len(batch_then), sum(r.computed for r in batch_then))
        now += seconds
        run.n_steps += 1
        run.prompt_tokens += n_tokens
        for r in live:
            r.made += 1
            run.gaps.append(now - r.last)
            r.last = now
            if r.made == r.n_out:
                r.finish = now
                if batching != "static":
                    running.remove(r)
        if batching == "static" and batch_then and all(not math.isnan(r.finish) for r in running):
            running.clear()
            static_open = True
        for r, part in parts:
            r.computed += part
            if r.computed == r.to_compute and math.isnan(r.first):
                r.first = r.last = now
    return run
