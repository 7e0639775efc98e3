"""The questions of `dse ask`: formats, crossover, inverse design, sensitivity, doubt, map, load, hits, speeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dse.core.errors import InputError
from dse.core.field import NAMES, NUMBER, PERCENT, SHARES, SWITCH, TOKENS, WHOLES
from dse.operations.declare import SILENT, Console, argument, operation, option, work
from dse.operations.shared import (
    TRAFFIC,
    Device,
    Model,
    OnDesign,
    OnDevice,
    Quantizer,
    Sourced,
    WithAgents,
    WithFigure,
    WithHost,
    WithLimits,
    WithWorkload,
    device_option,
    model_option,
    several,
)
from dse.specs.workload import MAX_BATCH, MAX_DEVICES, MAX_INPUT_TOKENS, Workload

if TYPE_CHECKING:
    from dse.questions.best_map import BestMap
    from dse.questions.common import Candidate
    from dse.questions.crossing import Crossing
    from dse.questions.doubt import Doubt
    from dse.questions.formats import Formats
    from dse.questions.hits import HitsByFormat
    from dse.questions.interactivity import Interactivity
    from dse.questions.load import UnderLoad
    from dse.questions.need import Need, NeedBits
    from dse.questions.sensitivity import Sensitivity
    from dse.validate.claim_doubt import ClaimDoubt

#: what a crossover and a map search over, in place of one batch and one prompt
SEARCHED = {"batch": "batches", "input_tokens": "inputs"}


@operation(
    "ask formats",
    "Which KV format pays here: throughput, memory, error.",
    function="formats",
    positional=("device", "model", "quantizers", "workload"),
)
class CompareFormats(OnDevice, WithWorkload, Sourced, WithFigure):
    """Compare the KV formats of a device and stack: what each takes and gives, and its gain over 16 bits.

    A format whose gain's whole interval lies above 1 pays; where it may lie on both sides, it may pay. Those that only
    let more requests run at once buy room. Compared are the formats that the engine's release runs on the device for
    the model, by its table (`hwspecs/engines`); what other software runs is told where it is asked for or named.

    >>> found = dse.formats("h200", "qwen3-32b", ["fp8", "qserve"], batch=64, input_tokens=8192, admission="paged")
    >>> [(one.name, one.verdict) for one in found.formats]
    [('fp16', 'base'), ('fp8', 'pays'), ('qserve', 'refused')]
    """

    quantizers: Sequence[str] | None = option(
        None,
        "Formats to compare with 16 bits; default: all that the engine runs on the device for the model.",
        NAMES,
        former=("--formats", "--quantizer"),
        metavar="A,B",
    )
    max_drop: float | None = option(
        None,
        "Recommend no format whose published scores drop by more, or where that cannot be told.",
        PERCENT,
        metavar="1%",
        is_said=True,
        low=0,
        high=1,
    )
    max_error: float | None = option(
        None,
        "Recommend no format whose relative error of the attention output, as measured, is larger.",
        PERCENT,
        metavar="10%",
        is_said=True,
    )
    wide: bool = option(False, "Print all that is known of each format, in long lines.", SWITCH, in_python=False)

    def run(self, console: Console = SILENT) -> Formats:
        """Memory, time, error and energy of each format, with intervals."""
        from dse.questions.formats import Tolerance, formats
        from dse.specs.measurements import bits_from

        spec, lm, source = self.hardware(), self.language_model(), bits_from(self.bits, self.measurements)
        names = None if self.quantizers is None else several(self.quantizers)
        most = Tolerance(self.max_drop, self.max_error)
        return formats(spec, lm, self.workload, names, source, console.progress, tolerance=most)

    def text(self, outcome: Formats) -> str:
        """The table of 100 letters, or all that is known."""
        return outcome.wide_text() if self.wide else outcome.text()


@operation(
    "ask cross",
    "From which batch and prompt on a quantizer pays.",
    function="crossover",
    positional=("device", "model", "quantizer", "workload"),
)
class FindCrossover(OnDesign, WithFigure):
    """Find the batch (at each prompt length) and the prompt length (at each batch) from which a quantizer pays.

    Every batch is decided and every prompt length, whole numbers. Where it pays the reason is named: a faster step, or
    only capacity (a step is no faster, more requests run at once). A step time counts where the whole batch runs.

    >>> found = dse.crossover("h100", "llama2-13b", "nqkv", batches=[8], inputs=[512], dequant_path="fused")
    >>> [(run.first, run.last, run.verdict) for run in found.from_batch[0].runs]
    [(1, 6, 'no'), (7, 8, 'speed')]
    """

    against: Quantizer = option("fp16", "The quantizer to compare with.", metavar="Q", is_said=True)
    measure: str = option("throughput", "What must be better.", metavar="throughput|step", is_said=True)
    batches: Sequence[int] | None = option(
        None, "Batches to search prompts at; batches are searched up to the largest.", WHOLES, metavar="1,16"
    )
    inputs: Sequence[int] | None = option(
        None, "Prompts to search batches at; prompts are searched up to the largest.", WHOLES, metavar="512,8192"
    )
    workload: Workload = work(searched=SEARCHED)

    def run(self, console: Console = SILENT) -> Crossing:
        """Where the quantizer pays along batches and prompts."""
        from dse.questions import common, crossing

        return crossing.crossing(
            self.design(),
            self.design_of(self.device, self.model, self.against),
            self.workload,
            common.measure(self.measure, crossing.MEASURES),
            crossing.BATCHES if self.batches is None else list(self.batches),
            crossing.INPUTS if self.inputs is None else list(self.inputs),
            console.progress,
        )


@operation(
    "ask need",
    "Smallest device number, or most bits, to meet a target.",
    function="need",
    positional=("what", "device", "model", "quantizer", "workload"),
)
class FindNeed(OnDesign, WithFigure):
    """Find the smallest bandwidth, capacity or peak FLOP/s of a device that meets a target, and what stops a smaller.

    All else is as the device has it. `need bits` names the quantizer with most stored bits that meets the target: how
    far the cache must be compressed. Where no value does, that is the answer, with what stands in the way.

    >>> found = dse.need("bandwidth", "a100-80gb", "llama2-13b", batch=128, admission="paged", throughput=2000)
    >>> dse.units.human(found.value, found.unit)
    '10.32 TB/s'
    >>> dse.need("bits", "a100-80gb", "llama2-13b", throughput=1200, batch=128, admission="paged").best["quantizer"]
    'nvfp4'
    """

    what: str = argument(metavar="bandwidth|capacity|flops|bits")
    throughput: float | None = option(None, "Target: at least so many tok/s.", NUMBER, metavar="X", unit="tok/s")
    step_ms: float | None = option(
        None, "Target: a decode step of the whole batch in at most so many ms.", NUMBER, metavar="X", unit="ms"
    )
    quantizers: Sequence[Quantizer] | None = option(
        None, "For bits: KV quantizers to choose from; default: those of `ask formats`.", NAMES, metavar="A,B"
    )

    def unused(self) -> dict[str, str]:
        """Bits are chosen among quantizers, a number of the device is sought for one."""
        if self.what != "bits":
            return {"quantizers": f"on {self.what}, which is of one quantizer"}
        return dict.fromkeys(("quantizer", "key_quantizer", "value_quantizer"), "on bits, which has quantizers")

    def run(self, console: Console = SILENT) -> Need | NeedBits:
        """The number, or the quantizer, that meets the target."""
        from dse.questions import need

        goal = need.target(self.throughput, self.step_ms)
        if self.what != "bits":
            return need.smallest(self.design(), self.workload, self.what, goal, console.progress)
        if self.bits == "measured" and self.quantizers is None:
            raise InputError("bits = measured: not every family is measured: name some with --quantizers")
        return need.most_bits(self._candidates(), self.workload, goal, console.progress)

    def _candidates(self) -> list[Candidate]:
        from dse.questions import need
        from dse.specs.measurements import bits_from

        if self.quantizers is not None:
            return [self.design_of(self.device, self.model, name) for name in several(self.quantizers)]
        source = bits_from(self.bits, self.measurements)
        return need.candidates(self.hardware(), self.language_model(), self.workload, source)


@operation(
    "ask sensitivity",
    "A result where each number of the device halves or doubles.",
    function="sensitivity",
    positional=("device", "model", "quantizer", "workload"),
)
class VaryDevice(OnDesign, WithFigure):
    """Halve and double each number of the device, one at a time: bandwidth, capacity, peak FLOP/s, power, price, ...

    The result at both, over that as given. Without --batch as many requests run as fit at each value; kernels keep the
    shares of peak rates that they reach. How sure the numbers are is another question: `dse ask doubt`.

    >>> found = dse.sensitivity("a100-80gb", "llama2-13b", "fp16", admission="paged")
    >>> [effect.number.name for effect in found.effects[:2]]
    ['memory_bandwidth', 'memory_capacity']
    """

    against: Quantizer | None = option(
        None, "A second quantizer on the same device: does the better one change?", metavar="Q"
    )
    measure: str = option("throughput", "The result.", metavar="throughput|step|energy|cost", is_said=True)

    def run(self, console: Console = SILENT) -> Sensitivity:
        """The result at half and at twice each number."""
        from dse.questions import common, sensitivity

        other = None if self.against is None else self.design_of(self.device, self.model, self.against)
        measure = common.measure(self.measure)
        return sensitivity.sensitivity(self.design(), self.workload, measure, other, console.progress)


@operation(
    "ask doubt",
    "Which unsure number moves a result, or which design wins.",
    function="doubt",
    positional=("device", "model", "quantizer", "workload"),
)
class VaryAssumptions(OnDesign, WithFigure):
    """Vary every number of the device that a result rests on inside its range, one at a time.

    Ranges by kind: assumed half to twice, derived 0.8 to 1.25, measured 0.9 to 1.1, published 0.95 to 1.05, datasheet
    as printed; fitted parameters within the error of their fit; usable_frac 0.8 to 1, runtime_overhead 0 to 4 GB; peak
    rates of the ideal model down to half; outliers and sinks as nominal or as measured (`--measurements`). Of a claim
    (`--claim`): the numbers of all its devices, and which of them would give what the paper prints.

    >>> found = dse.doubt("oaken-lpddr", "llama2-13b", "oaken", against="qserve", batch=64, other_software=True)
    >>> found.winner, [effect.number.name for effect in found.effects if effect.flips_at]
    ('qserve', ['fused_rate'])
    """

    device: Device = device_option("", "Device name or .toml file; not with --claim.")
    model: Model = model_option("")
    claim: str = option("", "A claim of a paper in place of a design (`dse validate claims`).", metavar="ID")
    against: Quantizer | None = option(
        None, "A second quantizer on the same device: does the better one change?", metavar="Q"
    )
    measure: str = option("throughput", "The result.", metavar="throughput|step|energy|cost", is_said=True)
    ranges: Sequence[str] = option(
        (), "A range of your own: x0.5:x2, 1TB/s:2TB/s.", name="range", metavar="NAME=LOW:HIGH", is_repeated=True
    )

    def lacking(self) -> str:
        """A design, or a claim."""
        missing = [name for name in ("device", "model") if not getattr(self, name)]
        return f"--{missing[0]} is missing: see dse ask doubt --help" if missing and not self.claim else ""

    def unused(self) -> dict[str, str]:
        """A claim says by itself of which designs it is."""
        names = ("device", "model", "quantizer", "against", "measure", "ranges", "out")
        return dict.fromkeys(names, "with --claim, which has designs and ranges of its own") if self.claim else {}

    def run(self, console: Console = SILENT) -> Doubt | ClaimDoubt:
        """The effect of each number on the result, on which design wins, or on a claim."""
        from dse.questions import common, doubt

        if self.claim:
            from dse.validate import claim_doubt

            return claim_doubt.doubt_of(self.claim, console.progress)
        design = self.design()
        other = None if self.against is None else self.design_of(self.device, self.model, self.against)
        counted = []
        if self.bits == "closed":
            counted = [doubt.with_measured_bits(side, self.measurements) for side in (design, other) if side]
        measure, ranges = common.measure(self.measure), several(self.ranges)
        return doubt.doubt(design, self.workload, measure, other, ranges, console.progress, counted)


@operation(
    "ask map",
    "Best quantizer over batch and prompt length.",
    function="best_map",
    positional=("device", "model", "quantizers", "workload"),
)
class MapBest(OnDevice, WithWorkload, Sourced, WithFigure):
    """Map the best of several quantizers over batch and prompt length, and its gain over FP16. Ties name all.

    >>> found = dse.best_map("h100", "llama3.1-8b", ["fp16", "fp8"], batches=[1, 256], inputs=[512, 8192])
    >>> found.table["best"].tolist()
    ['fp16', 'fp8', 'fp8', 'fp8']
    """

    quantizers: Sequence[Quantizer] | None = option(
        None,
        "KV quantizers to choose from; default: fp16 and all that the engine runs there for the model.",
        NAMES,
        former=("--quantizer",),
        metavar="A,B",
    )
    measure: str = option("throughput", "What must be best.", metavar="throughput|step|energy|cost", is_said=True)
    batches: Sequence[int] | None = option(
        None, "Batches; default: powers of two from 1 to 256.", WHOLES, metavar="1,16", low=1, high=MAX_BATCH
    )
    inputs: Sequence[int] | None = option(
        None,
        "Prompt tokens; default: powers of two from 256 to 32,768.",
        WHOLES,
        metavar="512,8192",
        low=1,
        high=MAX_INPUT_TOKENS,
    )
    workload: Workload = work(searched=SEARCHED)

    def run(self, console: Console = SILENT) -> BestMap:
        """The best quantizer of each cell."""
        from dse.questions import best_map, common, engine_formats
        from dse.specs.measurements import CLOSED

        named, measure = self.quantizers, common.measure(self.measure)
        if named is None:
            bits = self.source() or CLOSED
            designs = engine_formats.compared(self.hardware(), self.language_model(), self.workload, bits)
        else:
            designs = [self.design_of(self.device, self.model, name) for name in several(named)]
        return best_map.best_map(
            designs,
            self.workload,
            measure,
            best_map.BATCHES if self.batches is None else list(self.batches),
            best_map.INPUTS if self.inputs is None else list(self.inputs),
            console.progress,
        )


@operation(
    "ask load",
    "TPOT and TTFT as the rate of requests rises.",
    function="load",
    positional=("device", "model", "quantizer", "workload"),
)
class PredictLoad(OnDesign, WithLimits, WithFigure):
    """Predict TPOT and TTFT of requests that arrive at random, at shares of the saturated rate.

    In closed form, for requests of equal lengths; `dse simulate --rate` runs other lengths one by one.

    >>> waits = dse.load("h200", "qwen3-32b", "fp8", batch=64, input_tokens=8192, admission="paged")
    >>> waits.at(0.5)["tpot_s"] < waits.at(0.55)["tpot_s"]
    True
    """

    loads: Sequence[float] | None = option(
        None, "Shares of the saturated request rate; default: ten from 0.05 to 0.9.", SHARES, metavar="0.2,0.8"
    )

    def run(self, console: Console = SILENT) -> UnderLoad:
        """TPOT and TTFT at fractions of the saturated request rate."""
        from dse.questions import load

        loads = load.LOADS if self.loads is None else list(self.loads)
        limits = self.limits_s(self.workload.output_tokens)
        answer = load.under_load(self.design(), self.workload, loads, limits=limits)
        self.say_left_out(self.workload.output_tokens, console)
        return answer


@operation(
    "ask hits",
    "Whether fewer bits bring hits in the prefix cache.",
    function="hits",
    positional=("device", "model", "quantizers", "workload"),
)
class FindHits(OnDevice, WithAgents, WithHost, WithWorkload, Sourced, WithFigure):
    """Find what each KV format's pool keeps of prompts: hits, TTFT, requests per second, price, agents that fit.

    Of agents in a closed loop: --sessions of them at a time, each of --turns, whose prompts are --shared tokens and all
    before. Or of a trace (--trace) whose lines name the blocks of their prompts (hash_ids), on a server that is always
    full. One pass over the prompts gives the hits at every pool: the answer says where more of it brings no more.

    >>> found = dse.hits("h200", "qwen3-32b", ["fp8"], sessions=32, turns=20, growth=1200, shared=6000)
    >>> [(row["name"], row["agents"]) for row in found.rows]
    [('fp16', 19), ('fp8', 38)]
    """

    output_tokens: int = option(
        256,
        "Generated tokens of a turn, which its growth includes.",
        TOKENS,
        name="output",
        metavar="N",
        low=1,
        high=MAX_INPUT_TOKENS,
    )
    trace: str | None = option(
        None, "A trace that names the blocks of its prompts, in place of agents.", metavar="FILE.jsonl"
    )
    quantizers: Sequence[Quantizer] | None = option(
        None,
        "Formats to compare with 16 bits; default: all that the engine runs there for the model.",
        NAMES,
        metavar="A,B",
    )
    workload: Workload = work(
        only=TRAFFIC,
        helps={"batch": "Most requests that run at once; default: as many as the server takes."},
        takes_all=False,
    )

    def lacking(self) -> str:
        """Agents, or a trace."""
        return (
            "" if self.trace or self.sessions else "--sessions is missing: how many agents, or give --trace FILE.jsonl"
        )

    def unused(self) -> dict[str, str]:
        """A trace has prompts of its own."""
        names = ("sessions", *self.of_sessions, "output_tokens")
        of_agents = dict.fromkeys(names, "with --trace, which has prompts of its own") if self.trace else {}
        return of_agents | self.unused_of_host()

    def run(self, console: Console = SILENT) -> HitsByFormat:
        """Hits of each format's pool, and what they bring."""
        from dse.questions.hits import hits_by_format
        from dse.specs.measurements import CLOSED

        if not (self.trace or self.sessions):
            raise InputError(self.lacking())
        return hits_by_format(
            self.hardware(),
            self.language_model(),
            self.workload,
            self.trace or self.agents(self.output_tokens),
            None if self.quantizers is None else several(self.quantizers),
            self.source() or CLOSED,
            lambda design: self.host(design, self.workload),
            console.progress,
        )


@operation(
    "ask interactivity",
    "Throughput a device against the speed of each user.",
    function="interactivity",
    positional=("device", "model", "quantizers", "workload"),
)
class TradeSpeeds(OnDevice, WithWorkload, Sourced, WithLimits, WithFigure):
    """Trade throughput a device against the speed that each user sees, over batches and layouts, for KV formats.

    A curve holds the designs of a format that none of its others beats in both. The best within limits is that of
    `dse recommend` on as many devices with the same engine.

    >>> found = dse.interactivity("h200", "qwen3-32b", ["fp16", "fp8"], max_tpot="20 ms", input_tokens=8192)
    >>> found.best["quantizer"], found.best["tpot_s"] <= 0.020
    ('fp8', True)
    """

    quantizers: Sequence[Quantizer] | None = option(
        None,
        "KV quantizers to compare; default: fp16 and all that the engine runs there for the model.",
        NAMES,
        former=("--quantizer",),
        metavar="A,B",
    )
    splits: Sequence[int] | None = option(
        None,
        "Devices that the model is split over; default: 1, 2, 4 and 8, or the workload's own layout where it names "
        "several.",
        WHOLES,
        metavar="1,8",
        low=1,
        high=MAX_DEVICES,
    )
    measured: str | None = option(
        None,
        "Measured servers to draw beside it, in the columns of aiconfigurator-core's silicon_sample.csv: those of the "
        "model, the device and the lengths.",
        metavar="FILE",
    )
    workload: Workload = work(searched={"batch": "splits"})

    def unused(self) -> dict[str, str]:
        """Splits that are named take the place of the workload's own."""
        why = "with --splits, which says over how many devices"
        return {} if self.splits is None else dict.fromkeys(("tp", "pp"), why)

    def run(self, console: Console = SILENT) -> Interactivity:
        """The servers of the search over batches, and the best within the limits."""
        from dse.questions import interactivity
        from dse.questions.grid import Choices, grid_of
        from dse.questions.server_design import Demand, RequestsAtOnce
        from dse.specs.deployment import USUAL_SIZES, is_usual
        from dse.specs.measurements import CLOSED
        from dse.validate import serving

        work, spec, model = self.workload, self.hardware(), self.language_model()
        demand = Demand(RequestsAtOnce(None), self.limits_s(work.output_tokens))
        measured = serving.speeds(self.measured, spec, model, work) if self.measured else []
        own = (work.n_devices,) if work.n_devices > 1 else USUAL_SIZES
        sizes = own if self.splits is None else several(self.splits)
        choices = Choices(
            engines=(work.stack,),
            quantizers=None if self.quantizers is None else tuple(several(self.quantizers)),
            most=max(sizes),
            any_size=not all(map(is_usual, sizes)),
            sizes=tuple(sizes),
            bits=self.source() or CLOSED,
        )
        found = grid_of({spec.name: spec}, model, work, demand, choices, {})
        answer = interactivity.interactivity(found, demand, measured, console.progress)
        self.say_left_out(work.output_tokens, console)
        return answer
