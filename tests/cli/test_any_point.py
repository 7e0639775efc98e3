"""Designs drawn from all devices, models and splits: each has an answer or one line that says why there is none."""

import contextlib
import math
import random

import pytest

from dse.cli import main as cli
from dse.core.errors import InputError
from dse.model import evaluate
from dse.specs import catalog
from dse.specs.workload import Workload
from factories import build

DRAWN = random.Random(20261123)
DEVICES, MODELS = list(catalog.device_files()), list(catalog.model_files())
QUANTIZERS = ["fp16", "fp8", "nqkv", "oaken", "kivi", "nvfp4", "turboquant_4bit_nc"]


def draw(n):
    return [
        (DRAWN.choice(DEVICES), DRAWN.choice(MODELS), DRAWN.choice([1, 1, 2, 4, 8]), DRAWN.choice(QUANTIZERS))
        for _ in range(n)
    ]


def answered(device, model, tp, quantizer):
    """(results, None), or (None, why there are none)."""
    try:
        work = Workload(4, 2000, 50, tp=tp)
        return evaluate.evaluate(catalog.device(device), build(model, quantizer), work), None
    except InputError as problem:
        return None, problem


def test_two_hundred_points():
    n_run = 0
    for device, model, tp, quantizer in draw(200):
        found, problem = answered(device, model, tp, quantizer)
        if problem:
            assert len(problem.lines()) == 1
            continue
        assert (found["infeasible_reason"] is None) == found["feasible"]
        if found["feasible"]:
            n_run += 1
            assert math.isfinite(found["throughput_tokens_per_s"])
            assert found["throughput_tokens_per_s"] > 0
            assert found["kv_bytes"] > 0
    assert n_run > 50


COMMANDS = [
    ["point", "--batch", "4", "--input", "2000", "--output", "50", "--json"],
    ["point", "--batch", "4", "--input", "2000", "--output", "50", "--explain", "decode_step_s"],
    ["simulate", "--rate", "50%", "--requests", "50", "--input", "500", "--output", "20"],
    ["traffic", "azure-conv"],
    ["ask", "formats", "--batch", "4", "--formats", "fp8,int4_per_token_head"],
    ["ask", "need", "bandwidth"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(command[:2]) for command in COMMANDS])
def test_every_command_answers_or_says_why(command, capsys):
    for device, model, tp, quantizer in draw(6):
        asked = [*command, "--device", device, "--model", model, "--tp", str(tp)]
        asked += [] if "formats" in command else ["--quantizer", quantizer]
        with contextlib.suppress(SystemExit):
            cli.main(asked)
        out, err = capsys.readouterr()
        assert "unexpected" not in err, asked
        assert out or len(err.strip().splitlines()) == 1, asked
