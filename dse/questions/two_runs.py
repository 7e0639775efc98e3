"""Two benchmark runs that would tell the better of two designs: their commands, and how sure the choice is then."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dse.model import uncertainty
from dse.model.uncertainty import Gain
from dse.questions.common import sure_text

#: 9 of 10 reruns of one server within four days lie so far apart or less (whole_steps_2.csv, InferenceX), which is
#: RERUN_80 at the 80 % that intervals have: the 95th and 90th percentiles of errors are 2.132 and 1.533 of their unit
RERUN_90 = 0.04
RERUN_80 = RERUN_90 * 1.533 / 2.132
#: requests of a run over those at once, as InferenceX sends them
ROUNDS = 10
#: parts of a distribution that are summed
N_PARTS = 400
#: engine -> benchmark of its own, which has equal lengths and no early ends so, and its prompts, outputs and file
_BENCHMARKS = {
    "vllm": ("vllm bench serve --ignore-eos --save-result", ""),
    "sglang": ("python3 -m sglang.bench_serving --backend sglang --dataset-name random --random-range-ratio 1", ""),
    "trtllm": (
        "python3 -m tensorrt_llm.serve.scripts.benchmark_serving --model MODEL --dataset-name random --random-ids "
        "--ignore-eos --save-result",
        " --stack trtllm",
    ),
}


class TwoRuns(NamedTuple):
    """A run of each of two designs, the better one first, and the chance of a right choice before and after."""

    #: of each design: its name in the answer, and its requests at once
    names: tuple[str, str]
    requests: tuple[int, int]
    #: benchmark of the first; the second differs in its requests at most
    command: str
    #: options that the rows need beside
    options: str
    sure: float
    sure_then: float

    def text(self) -> str:
        """One line."""
        (first, second), (n, n_second) = self.names, self.requests
        other = "" if n == n_second else f" ({_load(n_second)} for {second})"
        return (
            f"Two runs would tell {first} from {second} ({sure_text(self.sure)} sure now, {sure_text(self.sure_then)} "
            f"then): `{self.command}` on both{other}, then `dse calibrate server ROWS --out FILE.toml{self.options}`."
        )

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return self._asdict()


def two_runs(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str], gain: Gain) -> TwoRuns | None:
    """The runs that separate two designs, by results or rows of them, of which the first is better by `gain`: each at
    the load that they are compared at. None where the engine has no benchmark of its own, or prompts share a prefix.
    """
    engine = str(first.get("stack") or "").partition("@")[0]
    if engine not in _BENCHMARKS or first.get("prefix_tokens"):
        return None
    words, options = _BENCHMARKS[engine]
    n, n_second = int(first["batch"]), int(second["batch"])
    inputs, outputs = (int(first[f"{name}_tokens"]) for name in ("input", "output"))
    lengths = f"--random-input-len {inputs} --random-output-len {outputs}"
    return TwoRuns(names, (n, n_second), f"{words} {_load(n)} {lengths}", options, gain.sure, sure_then(gain))


def _load(n: int) -> str:
    return f"--max-concurrency {n} --num-prompts {ROUNDS * n}"


def sure_then(gain: Gain) -> float:
    """The chance that two runs show the design ahead that is: they err as reruns do, the true gain as predicted."""
    if gain.low == gain.high:
        return gain.sure_of_side
    middle, half = math.log(gain.low * gain.high) / 2, math.log(gain.high / gain.low) / 2
    ends = [middle + half * 8 * (2 * i / N_PARTS - 1) for i in range(N_PARTS + 1)]
    above = [1.0, *(_chance_above(end, middle, half) for end in ends[1:-1]), 0.0]
    parts = zip(ends, ends[1:], above, above[1:], strict=False)
    return math.fsum(
        (more - less) * _chance_above(0.0, abs(low + high) / 2, RERUN_80) for low, high, more, less in parts
    )


def _chance_above(at: float, middle: float, half: float) -> float:
    """The chance that a logarithm with the 80 % interval middle ± half is above `at`."""
    return uncertainty.chance(math.exp(middle - half - at), math.exp(middle + half - at))
