"""Fit the time of servers beside kernels, by stack and release, to whole measured steps.

A measured time per output token is that of a steady server (dse/model/server.py): a decode step and its part of the
prompts that come in, and `layer * n_layers + sequence * n` in both. The two are fitted for all stacks together: a fit
of each stack alone errs more on models that it did not see. A release with rows has its own, pulled towards that. A
time to first token is the prompt's kernels, `prompt * n_layers` (more in mixtures), `request` for each that runs, and
the wait behind the prompts of requests in step with it.

Routed experts are not as fast in a server as in benchmarks of their kernels: `start` of their launches and `time` of
the rest, by format and generation of devices, then by stack; each pulled towards the one before, and the first towards
the benchmarks. Stage two, so that dense models are as they are without. docs/explanation/calibration.md, Whole steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.calibrate.fit import percent
from dse.calibrate.servers import ServerRow, is_suspect, read
from dse.calibrate.solve import Floats
from dse.core import files, specfile, toml, units
from dse.core.errors import DseError, InputError, clean
from dse.model.formulas import host
from dse.model.formulas.steady import burst_wait_s
from dse.model.kernels import expert_code, generation_of
from dse.model.point import Point
from dse.model.records import Stack
from dse.model.server import AtOnce, Pass, last_pass
from dse.model.step import prompt_host_s, sequence_host_s
from dse.specs import engines
from dse.specs.device_and_model import load
from dse.specs.stack import ServerSpec

_US = units.to_base(1, "us")
#: layer, sequence: in seconds where one of each is usual
SCALE = np.array([5e-6, 2e-5])
USUAL = np.array([1.0, 1.0])
#: relative error from which on a row pulls with constant force: releases and recipes differ by as much
HUBER = 0.1
#: how strongly a release keeps to all stacks, in rows of that error
PULL = 1.0
#: seconds of a prompt and layer, what mixtures add, of a request that runs, and rounds in step: where one of each is,
#: usual, least
PROMPT_SCALE = np.array([1e-3, 1e-3, 1e-3, 1.0])
PROMPT_USUAL = np.array([0.3, 1.0, 0.5, 2.0])
LEAST_PROMPT = np.array([0.0, 0.0, 0.0, 1.0])
#: a first token that takes longer waited for a place
LONGEST_FIRST_S = 20.0
FEWEST_ROWS = 10
#: how far logarithms of (start, time) of experts lie from the benchmarks, and those of a stack from all: standard
#: deviations; a row errs by OFF. Assumed, all three: no fit chose them
ALL_OFF, STACK_OFF, OFF = 0.3, 0.2, 0.35
#: no fit says less of a step than this share of it, and no logarithm is larger
LEAST_SHARE, MOST_LOG = 0.01, 2.0
PROMPT_FIELDS = ("prompt", "experts_prompt", "request", "rounds_in_step")
FIELDS = ("layer", "sequence", *PROMPT_FIELDS)
TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


@dataclass(frozen=True)
class Features:
    """Rows as a fit takes them; `counts` times the numbers of a server make up what kernels leave of a token's time."""

    rows: list[ServerRow]
    #: seconds that kernels, exchanges and prompts explain, and what was measured
    explained_s: Floats
    measured_s: Floats
    #: passes of layers and sequences in a token's time
    counts: NDArray[np.float64]
    layers: Floats
    #: the same of a first token: its own prompt and the wait for a place, requests that run, half of the prompts of
    #: others, rounds, and what was measured (nan: none)
    first_s: Floats
    running: Floats
    burst_s: Floats
    rounds: Floats
    first_measured_s: Floats
    is_mixture: NDArray[np.bool_]
    #: (starts, reads and products) of routed experts by the benchmarks, in a token's time and in a first token's
    experts: NDArray[np.float64]
    first_experts: NDArray[np.float64]
    #: (format, generation of devices) of experts that were benchmarked, else ("", "")
    kinds: list[tuple[str, str]]

    def take(self, mask: NDArray[Any]) -> "Features":
        """The rows where `mask` is true."""
        return Features(
            [row for row, keep in zip(self.rows, mask, strict=True) if keep],
            explained_s=self.explained_s[mask],
            measured_s=self.measured_s[mask],
            counts=self.counts[mask],
            layers=self.layers[mask],
            first_s=self.first_s[mask],
            running=self.running[mask],
            burst_s=self.burst_s[mask],
            rounds=self.rounds[mask],
            first_measured_s=self.first_measured_s[mask],
            is_mixture=self.is_mixture[mask],
            experts=self.experts[mask],
            first_experts=self.first_experts[mask],
            kinds=[kind for kind, keep in zip(self.kinds, mask, strict=True) if keep],
        )

    def with_experts(self, more: NDArray[np.float64]) -> "Features":
        """The rows with experts that take such shares more (start, time)."""
        return replace(
            self,
            explained_s=self.explained_s + (self.experts * more).sum(axis=1),
            first_s=self.first_s + (self.first_experts * more).sum(axis=1),
        )

    def of(self, **wanted: str) -> NDArray[np.bool_]:
        """Mark the rows with these fields."""
        return np.array([all(getattr(row, name) == value for name, value in wanted.items()) for row in self.rows])


def features(rows: Iterable[ServerRow]) -> Features:
    """Split the time of each row that has one into what kernels explain and the rest; separate pools are left out."""
    kept, numbers, kinds = [], [], []
    for row in rows:
        if row.tpot_s is None or row.reason or row.work is None or row.spec is None or row.prompt_work:
            continue
        try:
            point = row.point()
            plain = as_benchmarked(point)
            n_tokens, bare = row.work.output_tokens, _steady(point, row.concurrency, plain)
            hosts = [
                _steady(point, row.concurrency, plain._replace(host_layer_s=layer_s, host_sequence_s=sequence_s))
                for layer_s, sequence_s in ((1.0, 0.0), (0.0, 1.0))
            ]
            slower = [
                _steady(point, row.concurrency, stack)
                for stack in (
                    plain._replace(expert_launch_s=2 * plain.expert_launch_s),
                    plain._replace(
                        expert_memory_frac=plain.expert_memory_frac / 2, expert_flops_frac=plain.expert_flops_frac / 2
                    ),
                )
            ]
            # linear in all four
            counts = [(variant.decode_s - bare.decode_s) / n_tokens for variant in (*hosts, *slower)]
            own_s = host.start_s(bare.n_places, plain.host_prompt_s, plain.host_blocks_s, plain.host_request_s)
            first = _first_s(bare) - own_s
            first_experts = [_first_s(variant) - _first_s(bare) for variant in slower]
            burst = burst_wait_s(bare.cycle.prompt_steps - bare.cycle.own_steps, bare.prompt_step_s, 1.0, 1.0)
        except DseError:
            continue
        kept.append(row)
        assert row.device is not None
        has_kind = point.design.stack.has_experts
        kinds.append((row.work.weight_format.expert_code, generation_of(row.device)) if has_kind else ("", ""))
        numbers.append(
            (
                bare.decode_s / n_tokens,
                row.tpot_s,
                *counts,
                row.spec.n_layers,
                first,
                bare.n_places,
                burst,
                row.work.rounds,
                row.ttft_s or np.nan,
                row.spec.n_experts > 1,
                *first_experts,
            )
        )
    if not kept:
        raise InputError("no row has a time per output token and can be predicted: give measured rows")
    table = np.array(numbers, float)
    explained, measured = table[:, :2].T
    layers, first, running, burst, rounds, first_measured = table[:, 6:12].T
    return Features(
        kept,
        explained_s=explained,
        measured_s=measured,
        counts=table[:, 2:4],
        layers=layers,
        first_s=first,
        running=running,
        burst_s=burst,
        rounds=rounds,
        first_measured_s=first_measured,
        is_mixture=table[:, 12].astype(bool),
        experts=table[:, 4:6],
        first_experts=table[:, 13:15],
        kinds=kinds,
    )


def as_benchmarked(point: Point) -> Stack:
    """The stack of a design with routed experts as benchmarks of kernels have them, and no time of a server."""
    reach, stack = point.design.stack._replace(host_layer_s=0.0, host_sequence_s=0.0), point.stack
    code = expert_code(stack, point.work.weight_format) if stack and reach.has_experts else None
    if stack is None or code is None:
        return reach
    fit = stack.experts[code]
    return reach._replace(
        expert_launch_s=fit.launch.si, expert_memory_frac=fit.memory_frac.si, expert_flops_frac=fit.flops_frac.si
    )


def _first_s(server: Pass) -> float:
    """Seconds to the first token without the wait behind prompts in step."""
    return server.prompt_s + server.place_wait_s


def _steady(point: Point, concurrency: float, stack: Stack) -> Pass:
    """The steady server of a design with another stack."""
    design = point.design._replace(stack=stack)
    terms = point.terms._replace(host_s=prompt_host_s(design), host_sequence_s=sequence_host_s(design))
    most, n_steps = float(max(point.max_batch, 1)), float(design.output_tokens)
    requests = AtOnce(float(concurrency), most, n_steps, n_apart=0, longest=1.0)
    return last_pass(design, point.made, terms, point.sums, requests, 0.0)


def _weights(rows: Features) -> Floats:
    """Groups of one model, device, stack and release count as the root of their rows."""
    names = [(row.model, row.system, row.stack, row.release, row.precision) for row in rows.rows]
    return np.array([names.count(name) ** -0.5 for name in names])


def robust(off: Floats) -> Floats:
    """Residuals whose squares are Huber's loss: relative errors above HUBER pull with constant force."""
    far = np.abs(off) / HUBER
    pulled: Floats = np.where(far > 1, np.sqrt(2 * np.maximum(far, 1) - 1), far) * np.sign(off)
    return pulled


def fit_tokens(rows: Features, prior: Floats, pull: float = PULL) -> Floats:
    """(layer, sequence) in SCALE that explain what kernels leave, pulled to `prior` as so many rows would."""
    from scipy.optimize import least_squares

    weights = np.sqrt(_weights(rows))

    def residuals(values: Floats) -> Floats:
        off = np.log((rows.explained_s + rows.counts @ (values * SCALE)) / rows.measured_s)
        return np.concatenate((weights * robust(off), pull * (values - prior)))

    best = least_squares(residuals, np.maximum(prior, 1e-3), bounds=(np.zeros(2), np.full(2, 60.0)))
    return np.asarray(best.x)


Experts = dict[tuple[str, ...], Floats]


def fit_experts(rows: Features, tokens_s: Floats) -> Experts:
    """Logarithms of (start, time) by (format, generation), and what a stack adds to them by (format, generation,
    stack); `tokens_s` are times per output token with experts as benchmarked."""
    from scipy.optimize import least_squares

    has = np.array([bool(code) for code, _ in rows.kinds], bool)
    rows, tokens_s = rows.take(has), tokens_s[has]
    if not len(rows.rows):
        return {}
    places = sorted({*rows.kinds, *_stacks_of(rows)})
    indexes = [np.array([places.index(place) for place in each]) for each in (rows.kinds, _stacks_of(rows))]
    off = np.array([ALL_OFF if len(place) == 2 else STACK_OFF for place in places])
    weights = np.sqrt(_weights(rows))

    def residuals(values: Floats) -> Floats:
        logs = values.reshape(-1, 2)
        factors = np.exp(logs[indexes[0]] + logs[indexes[1]]) - 1
        predicted = np.maximum(tokens_s + (rows.experts * factors).sum(axis=1), LEAST_SHARE * rows.measured_s)
        pulls = OFF * (logs / off[:, None]).ravel()
        return np.concatenate((weights * robust(np.log(predicted / rows.measured_s)), pulls))

    best = least_squares(residuals, np.zeros(2 * len(places)), bounds=(-MOST_LOG, MOST_LOG))
    return dict(zip(places, best.x.reshape(-1, 2), strict=True))


def _stacks_of(rows: Features) -> list[tuple[str, ...]]:
    return [(*kind, row.stack) for kind, row in zip(rows.kinds, rows.rows, strict=True)]


def more_experts(rows: Features, experts: Experts) -> NDArray[np.float64]:
    """What fitted (start, time) of experts take beyond the benchmarks, as a share of each."""
    nothing = np.zeros(2)
    logs = [
        experts.get(kind, nothing) + experts.get(of_stack, nothing)
        for kind, of_stack in zip(rows.kinds, _stacks_of(rows), strict=True)
    ]
    return np.expm1(np.array(logs))


def fit_prompts(rows: Features, prior: Floats, pull: float = PULL) -> Floats:
    """(prompt, what mixtures add, request, rounds in step) in PROMPT_SCALE that explain times to first token."""
    from scipy.optimize import least_squares

    known = np.isfinite(rows.first_s) & (rows.first_measured_s < LONGEST_FIRST_S)
    rows = rows.take(known)
    if not len(rows.rows):
        return prior
    weights = np.sqrt(_weights(rows))

    def residuals(values: Floats) -> Floats:
        off = np.log(first_s(rows, values) / rows.first_measured_s)
        return np.concatenate((weights * robust(off), pull * (values - prior)))

    best = least_squares(residuals, np.maximum(prior, LEAST_PROMPT + 1e-3), bounds=(LEAST_PROMPT, np.full(4, 60.0)))
    return np.asarray(best.x)


def first_s(rows: Features, prompts: Floats) -> Floats:
    """Times to first token of all rows, by what `fit_prompts` gives: of each row, or of all."""
    prompt, more, request, in_step = (prompts * PROMPT_SCALE).T
    waits_s = rows.burst_s * np.minimum(in_step / rows.rounds, 1.0) + request * rows.running
    seconds: Floats = rows.first_s + waits_s + rows.layers * (prompt + rows.is_mixture * more)
    return seconds


@dataclass(frozen=True)
class Hosts:
    """Fits of times per output token, of all stacks and of each release; and of prompts, of each stack."""

    everywhere: Floats
    releases: dict[tuple[str, str], Floats]
    prompts: dict[str, Floats]
    #: of (format, generation), and what (format, generation, stack) adds: `fit_experts`
    experts: Experts

    def tokens_s(self, rows: Features) -> Floats:
        """Times per output token of all rows by the nearest fits, experts as benchmarked."""
        hosts = np.array([self.releases.get((row.stack, row.release), self.everywhere) for row in rows.rows]) * SCALE
        seconds: Floats = rows.explained_s + (rows.counts * hosts).sum(axis=1)
        return seconds

    def predict(self, rows: Features) -> tuple[Floats, Floats]:
        """Times per output token, and to the first, of all rows by the nearest fits."""
        prompts = np.array([self.prompts.get(row.stack, PROMPT_USUAL) for row in rows.rows])
        rows = rows.with_experts(more_experts(rows, self.experts))
        return self.tokens_s(rows), first_s(rows, prompts)


def fit_all(rows: Features) -> Hosts:
    """Every fit, from rows that are measurements of what they state."""
    rows = rows.take(np.array([not is_suspect(row) for row in rows.rows]))
    everywhere, releases = fit_tokens(rows, USUAL), {}
    for place in sorted({(row.stack, row.release) for row in rows.rows}):
        of_release = rows.take(rows.of(stack=place[0], release=place[1]))
        if np.sum(~of_release.is_mixture) >= FEWEST_ROWS:  # whose kernels are better known
            of_release = of_release.take(~of_release.is_mixture)
        if len(of_release.rows) >= FEWEST_ROWS:
            releases[place] = fit_tokens(of_release, everywhere)
    hosts = Hosts(everywhere, releases, {}, {})
    experts = fit_experts(rows, hosts.tokens_s(rows))
    rows = rows.with_experts(more_experts(rows, experts))
    any_prompts = fit_prompts(rows, PROMPT_USUAL)
    prompts = {
        stack: fit_prompts(rows.take(rows.of(stack=stack)), any_prompts)
        for stack in sorted({row.stack for row in rows.rows})
    }
    return Hosts(everywhere, releases, prompts, experts)


def names_of(rows: Features) -> NDArray[np.str_]:
    """The model of each row."""
    return np.array([row.spec.name if row.spec else "" for row in rows.rows])


def left_out(rows: Features) -> tuple[Floats, Floats]:
    """Times per output token, and to the first, of each row by fits that saw no row of its model."""
    per_token, first = np.full(len(rows.rows), np.nan), np.full(len(rows.rows), np.nan)
    names = names_of(rows)
    for name in sorted(set(names.tolist())):
        of_model = names == name
        if (~of_model).any():
            per_token[of_model], first[of_model] = fit_all(rows.take(~of_model)).predict(rows.take(of_model))
    return per_token, first


#: percentiles between which 8 of 10 rows lie: of a model, each predicted by a fit without it; and of a kind of models,
#: whose next model lies further out than the rows of the others
SEEN, UNSEEN = (0.1, 0.9), (0.06, 0.94)
#: ends of a spread, and which of two is the wider
ENDS = {"low": min, "high": max, "first_low": min, "first_high": max}


@dataclass(frozen=True)
class Spreads:
    """How far off fits are on models that they did not see: by kind, and of each model with rows on a server."""

    left_out: dict[str, dict[str, float]]
    models: dict[str, dict[str, float]]


def spreads(rows: Features, tokens_s: Floats, firsts_s: Floats, stack: str) -> Spreads:
    """What is measured over what fits without the model predict, of a server.

    Of a kind of models it is that of the rows of all servers, and further where those of this server lie further; of a
    model so as well. A server that errs less than others did so on few models: the next may be as those of others.
    """

    def of(subset: NDArray[np.bool_], at: tuple[float, float]) -> dict[str, float]:
        return spread(rows.take(subset), tokens_s[subset], firsts_s[subset], at)

    on_it, names = rows.of(stack=stack), names_of(rows)
    left_out, models = {}, {}
    for kind, mask in (("dense", ~rows.is_mixture), ("mixture", rows.is_mixture)):
        if not mask.any():
            continue
        parts = [mask, *([mask & on_it] if (mask & on_it).sum() >= FEWEST_ROWS else [])]
        left_out[kind] = _widest([of(part, UNSEEN) for part in parts])
        for model in sorted(set(names[mask & on_it].tolist())):
            rows_of_it = on_it & (names == model)
            if rows_of_it.sum() >= FEWEST_ROWS:
                models[model] = _widest([of(rows_of_it, SEEN), left_out[kind]])
    return Spreads(left_out, models)


def _widest(spreads: list[dict[str, float]]) -> dict[str, float]:
    """The first of several spreads, to the furthest ends of them all."""
    return {**spreads[0], **{end: pick(item[end] for item in spreads) for end, pick in ENDS.items()}}


def spread(rows: Features, tokens_s: Floats, firsts_s: Floats, at: tuple[float, float]) -> dict[str, float]:
    """Measured over predicted at two percentiles; what is predicted lies between them."""
    ratio, first = rows.measured_s / tokens_s, rows.first_measured_s / firsts_s
    first = first[np.isfinite(first)]
    first = first if len(first) else np.array([0.3, 3.0])
    (low, high), (first_low, first_high) = np.quantile(ratio, at), np.quantile(first, at)
    ends = min(low, 1.0), max(high, 1.0), min(first_low, 1.0), max(first_high, 1.0)
    rounded = {name: float(f"{number:.3g}") for name, number in zip(ENDS, ends, strict=True)}
    return {**rounded, "n_points": len(ratio)}


def files_of(rows: Features, source: str) -> dict[str, str]:
    """Stack -> the text of its file: what was fitted, and how far off it is on models left out."""
    hosts = fit_all(rows)
    honest = np.array([not is_suspect(row) for row in rows.rows])
    rows = rows.take(honest)
    tokens_s, firsts_s = left_out(rows)
    texts = {}
    for stack, prompts in hosts.prompts.items():

        def table(values: Floats, n_points: int, said: str, prompts: Floats = prompts) -> dict[str, Any]:
            numbers = {
                **dict(zip(("layer", "sequence"), values * SCALE / _US, strict=True)),
                **dict(zip(PROMPT_FIELDS[:3], prompts[:3] * PROMPT_SCALE[:3] / _US, strict=True)),
            }
            shown = {name: float(f"{value:.4g}") if value > LEAST_US else 0.0 for name, value in numbers.items()}
            return {
                "source": f"{source}; {said}",
                **{name: f"{value!r} us" for name, value in shown.items()},
                "rounds_in_step": float(f"{prompts[3]:.4g}"),
                "n_points": n_points,
            }

        releases = {}
        for (name, release), values in hosts.releases.items():
            if name != stack:
                continue
            mask = rows.of(stack=stack, release=release)
            release_table = table(values, int(mask.sum()), f"{stack} {release or 'without a release, 2025'}")
            releases[release or engines.UNKNOWN] = release_table
        everywhere = table(hosts.everywhere, len(rows.rows), "all stacks and releases")
        data = {
            "name": stack,
            "title": TITLES.get(stack, stack),
            "host": everywhere,
            **vars(spreads(rows, tokens_s, firsts_s, stack)),
            "releases": releases,
            "experts": experts_table(rows, hosts.experts, stack, source),
        }
        texts[stack] = toml.dumps(data)
    return texts


def experts_table(rows: Features, experts: Experts, stack: str, source: str) -> dict[str, Any]:
    """Format -> generation -> (start, time) of experts on a stack, of all stacks where it has no rows of its own."""
    kinds = [kind for kind, row in zip(rows.kinds, rows.rows, strict=True) if row.stack == stack]
    found: dict[str, Any] = {}
    for kind in sorted(place for place in experts if len(place) == 2):
        logs = experts[kind] + experts.get((*kind, stack), np.zeros(2))
        start, time = (float(f"{factor:.3g}") for factor in np.exp(logs))
        n_points = kinds.count(kind)
        said = f"{source}; {'rows of ' + stack if n_points else 'rows of other stacks'}"
        code, generation = kind
        of_format = found.setdefault(code, {})
        of_format[generation] = {"start": start, "time": time, "n_points": n_points, "source": said}
    return found


#: less than this is nothing, in us
LEAST_US = 0.01


def run(source: str, out: str, **_: Any) -> dict[str, Any]:
    """Fit the servers' own time to a table of whole steps and write a file a stack into the directory `out`.

    Raises InputError for a table that no fit can be judged by, before anything is written.
    """
    rows = features(read(source))
    honest = np.array([not is_suspect(row) for row in rows.rows])
    _check(source, rows.take(honest))
    name = clean(Path(source).name, 80)
    said = f"{name}: rows of aiconfigurator-core 0.12.0, silicon_sample.csv (Apache-2.0)"
    head = f"# Written by `dse calibrate {name} --kernel host`; docs/explanation/calibration.md, Whole steps.\n"
    texts = {stack: head + text for stack, text in files_of(rows, said).items()}
    parts = []
    for stack, text in texts.items():
        try:
            spec: ServerSpec = load(specfile.parse(stack, text), ServerSpec)
        except InputError as error:  # names a line of a file that there is not
            reason = error.lines()[0].partition(": ")[2]
            raise InputError(f"{source}: the fit of {stack} gives what no file may hold: {reason}") from error
        for release, fit in (("all", spec.host), *spec.releases.items()):
            numbers = {field: number.si if (number := getattr(fit, field)) else 0.0 for field in FIELDS}
            parts.append({"stack": stack, "release": release, "n_points": fit.n_points, **numbers})
    seen_s, _seen_first_s = fit_all(rows).predict(rows)
    unseen_s, unseen_first_s = left_out(rows)
    errors = {}
    for kind, mask in (("dense", honest & ~rows.is_mixture), ("mixture", honest & rows.is_mixture)):
        if mask.any():
            errors[kind] = {
                "rows": int(mask.sum()),
                "seen": _error(seen_s[mask], rows.measured_s[mask]),
                "unseen": _error(unseen_s[mask], rows.measured_s[mask]),
                "unseen_first": _error(unseen_first_s[mask], rows.first_measured_s[mask]),
            }
    files.publish(out, {f"{stack}.toml": text.encode() for stack, text in texts.items()})
    return {
        "table": source,
        "out": out,
        "rows": len(rows.rows),
        "suspect": int((~honest).sum()),
        "parts": parts,
        "errors": errors,
    }


def _check(source: str, rows: Features) -> None:
    """Raise InputError where rows cannot say how far off a fit is on a model that it did not see."""
    models = sorted(set(names_of(rows).tolist()))
    if len(models) < 2:
        only = f"has rows of {models[0]} alone" if models else "has no row that is not suspect"
        raise InputError(f"{source}: {only}: give rows of two models or more, each left out in turn to judge the fit")
    for kind, mask in (("dense models", ~rows.is_mixture), ("mixtures of experts", rows.is_mixture)):
        if mask.any() and not np.isfinite(rows.first_measured_s[mask]).any():
            raise InputError(
                f"{source}: no row of {kind} has silicon_ttft_ms: add the times to first token of some in that column"
            )


def _error(predicted: Floats, measured: Floats) -> dict[str, float]:
    off = np.abs(predicted / measured - 1)
    off = off[np.isfinite(off)]
    return {"mean": float(off.mean()), "p90": float(np.quantile(off, 0.9))}


def text(found: dict[str, Any]) -> str:
    """The report of `dse calibrate --kernel host`."""
    lines = [f"{found['rows']:,} rows of {found['table']}, {found['suspect']} of them left out as suspect", ""]
    lines.append(
        f"{'stack':<8}{'release':<18}{'layer':>8}{'sequence':>10}{'prompt':>9}{'+experts':>10}{'request':>9}"
        f"{'in step':>9}{'rows':>7}"
    )
    for part in found["parts"]:
        numbers = [part[name] / (1.0 if name == "rounds_in_step" else _US) for name in FIELDS]
        shown = "".join(f"{number:>{width}.3g}" for number, width in zip(numbers, (8, 10, 9, 10, 9, 9), strict=True))
        lines.append(f"{part['stack']:<8}{part['release']:<18}{shown}{part['n_points']:>7}")
    lines += ["us; prompt and +experts of a layer, request of each that runs; rounds in step", ""]
    for kind, error in found["errors"].items():
        said = ", ".join(
            f"{words} {percent(error[name]['mean'])} (90th percentile {percent(error[name]['p90'])})"
            for name, words in (("seen", "seen"), ("unseen", "models left out"), ("unseen_first", "to first token"))
        )
        lines.append(f"{kind}, {error['rows']} rows: {said}")
    return "\n".join([*lines, "", f"written: {found['out']}"])
