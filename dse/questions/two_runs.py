"""Two benchmark runs that would tell the better of two designs: their commands, and how sure the choice is then."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dse.model import intervals, uncertainty
from dse.model.uncertainty import Gain
from dse.questions import layouts
from dse.questions.common import sure_text

#: 9 of 10 reruns of one server within four days lie so far apart or less (whole_steps_2.csv, InferenceX), which is
#: RERUN_80 at the 80 % that intervals have: the 95th percentile of errors is 2.1318 of their unit (Student's t with
#: `intervals.FREEDOM`), the 90th `END_80`
RERUN_90 = 0.04
RERUN_80 = RERUN_90 * intervals.END_80 / 2.1318
#: requests of a run over those at once, as InferenceX sends them
ROUNDS = 10
#: chance of either design below which the better one is known without a run
TOLD_FROM = 0.01
#: parts of a distribution that are summed, and how many half widths it spans either way
N_PARTS, SPAN = 400, 8
#: engine -> its own benchmark with equal lengths and answers that do not end early
BENCHMARKS = {
    "vllm": "vllm bench serve --ignore-eos --save-result",
    "sglang": "python3 -m sglang.bench_serving --backend sglang --dataset-name random --random-range-ratio 1",
    "trtllm": "python3 -m tensorrt_llm.serve.scripts.benchmark_serving --model MODEL --backend openai --dataset-name "
    "random --random-ids --tokenize-on-client --ignore-eos --save-result",
}
#: what a run differs in that results of a benchmark do not say, but for SGLang's
_SAID = tuple(name for name in layouts.SPLIT if name != "tp")


class TwoRuns(NamedTuple):
    """A run of each of two designs, the better one first, and the chance of a right choice before and after."""

    names: tuple[str, str]
    #: benchmark of the first, and what of it is otherwise for the second
    command: str
    other: str
    #: what takes the results
    calibrate: str
    sure: float
    sure_then: float

    def text(self, of_second: bool = False) -> str:
        """One line; the chance before is that of the first, or of the second."""
        first, second = self.names
        now = f"{sure_text(1 - self.sure)} sure now of the second" if of_second else f"{sure_text(self.sure)} sure now"
        other = f", and with {self.other} of the second" if self.other else " of each"
        said = f"Two runs would tell {first} from {second} ({now}, {sure_text(self.sure_then)} then)"
        return f"{said}: `{self.command}`{other}; `{self.calibrate}` takes both."

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return self._asdict()


def two_runs(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str], gain: Gain) -> TwoRuns | None:
    """The runs that separate two designs, by results or rows of them, of which the first is better by `gain`.

    Each runs at the load at which it is compared: a load at which the two are further apart says less of that one, and
    may favor the other. None where the better one is known, where the engine has no benchmark of its own, where prompts
    share a prefix, and for rows of tables that say less.
    """
    engine = str(first.get("stack") or "").partition("@")[0]
    if engine not in BENCHMARKS or first.get("prefix_tokens", 1) or not TOLD_FROM <= gain.sure <= 1 - TOLD_FROM:
        return None
    loads = [
        f"--max-concurrency {int(row['batch'])} --num-prompts {ROUNDS * int(row['batch'])}" for row in (first, second)
    ]
    said = ["" if engine == "sglang" else _metadata(row) for row in (first, second)]
    inputs, outputs = (int(first[f"{name}_tokens"]) for name in ("input", "output"))
    lengths = f"--random-input-len {inputs} --random-output-len {outputs}"
    differ = [others[1] for others in (loads, said) if others[0] != others[1]]
    options = [f"--device {str(first['device']).lower()}", f"--model {first['model']}"]
    options += [f"--weights {first['weights']}"] if isinstance(first.get("weights"), str) else []
    options += [f"--stack {engine}"] if engine == "trtllm" else []
    return TwoRuns(
        names=names,
        command=" ".join(filter(None, [BENCHMARKS[engine], loads[0], lengths, said[0]])),
        other=f"`{' '.join(differ)}`" if differ else "",
        calibrate=f"dse calibrate server FIRST SECOND {' '.join(options)} --out FILE.toml",
        sure=gain.sure,
        sure_then=sure_then(gain),
    )


def _metadata(row: Mapping[str, Any]) -> str:
    """Options of vLLM's benchmark that write into its result what that does not say of the server."""
    said = [f"{name}={int(row[name])}" for name in _SAID if row[name] is True or row[name] > 1]
    return " ".join(["--metadata", f"tp={row['tp']}", *said, f"kv_dtype={row['quantizer']}"])


def sure_then(gain: Gain) -> float:
    """The chance that two runs show the design ahead that is: they err as reruns do, the true gain as predicted."""
    if gain.low == gain.high:
        return gain.sure_of_side
    middle, half = math.log(gain.low * gain.high) / 2, math.log(gain.high / gain.low) / 2
    ends = [middle + half * SPAN * (2 * i / N_PARTS - 1) for i in range(N_PARTS + 1)]
    above = [1.0, *(_chance_above(end, middle, half) for end in ends[1:-1]), 0.0]
    parts = zip(ends, ends[1:], above, above[1:], strict=False)
    return math.fsum(
        (more - less) * _chance_above(0.0, abs(low + high) / 2, RERUN_80) for low, high, more, less in parts
    )


def _chance_above(at: float, middle: float, half: float) -> float:
    """The chance that a logarithm with the 80 % interval middle ± half is above `at`."""
    return uncertainty.chance(math.exp(middle - half - at), math.exp(middle + half - at))
