"""Weights in what `dse point` prints: the first line names them, notes say where they come from and what they cost."""

import pytest

from factories import assert_one_line


def point(run, *argv: str) -> str:
    code, out, _ = run("point", *argv)
    assert code == 0
    return out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--model", "gpt-oss-120b"), "B200  gpt-oss-120b  mxfp4-experts weights  fp16  batch 1  "),
        (("--model", "gpt-oss-20b", "--weights", "bf16"), "B200  gpt-oss-20b  bf16 weights  fp16  batch 1  "),
        (("--model", "llama3.1-8b"), "B200  llama3.1-8b  bf16 weights  fp16  batch 1  "),
        (("--model", "llama3.1-8b", "--weights-bits", "8"), "B200  llama3.1-8b  8-bit weights  fp16  batch 1  "),
        (("--model", "Qwen/Qwen3-32B-FP8"), "B200  qwen3-32b  fp8-block weights  fp16  batch 1  "),
        (("--model", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"), "B200  llama3.2-1b  q4_k_m weights  fp16  "),
    ],
)
def test_the_first_line_names_the_weights(run, argv, said):
    assert point(run, "--device", "b200", "--batch", "1", *argv).startswith(said)


def test_a_checkpoint_in_fewer_bits_is_said_and_what_takes_its_place(run):
    named = ("--device", "b200", "--model", "Qwen/Qwen3-32B-FP8")
    assert "Note: weights as released: fp8-block (FP8, a scale a block of 128 x 128" in point(run, *named)
    other = point(run, *named, "--weights", "bf16")
    assert (
        "has fp8-block weights (FP8, a scale a block of 128 x 128): bf16 weights, as asked, take their place" in other
    )
    plain = point(run, "--device", "b200", "--model", "qwen3-32b")
    assert not [line for line in plain.splitlines() if line.startswith("Note") and "weights" in line]


def test_questions_simulations_and_traces_name_them_too(run):
    design = ("--device", "b200", "--model", "gpt-oss-120b")
    _, out, _ = run("ask", "formats", *design, "--input", "64", "--output", "8")
    assert "B200, gpt-oss-120b, mxfp4-experts weights, " in out.splitlines()[1]
    _, out, _ = run("simulate", *design, "--requests", "4", "--input", "64", "--output", "8")
    assert out.startswith("B200  gpt-oss-120b  mxfp4-experts weights  fp16  concurrency ")


def test_fewer_bits_that_make_a_step_slower_are_said(run):
    """ModelOpt's FP8 of mixtures runs on kernels that reach a fifth of an H100's memory bandwidth; blocks do not."""
    design = ("--device", "h100", "--model", "qwen3-30b-a3b", "--weights")
    slow = point(run, *design, "fp8-tensor")
    assert "Note: these weights make a step slower than 16 bits would (" in slow
    assert "kernels of experts in this format, as measured on vllm, reach 0.19 of the bandwidth" in slow
    for quick in ("fp8", "bf16", "int4"):
        assert "slower than 16 bits" not in point(run, *design, quick)


def test_a_tower_is_left_out_by_its_option(run):
    gemma = ("--device", "h100", "--model", "gemma-3-4b", "--json")
    whole, text = (point(run, *gemma, *more) for more in ((), ("--no-tower",)))
    assert whole != text


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ("--model", "llama3.1-70b", "--weights", "mxfp4-experts"),
            "has no experts: use mxfp4, or leave --weights out",
        ),
        (
            ("--model", "llama3.1-8b", "--weights", "q4_k_m", "--stack", "vllm", "--strict-kernels"),
            "was not released in it, and no kernel of vllm on H100 is known that runs it: use one of bf16, fp8, ",
        ),
        (("--model", "llama3.1-8b-fp8-int4"), "says two formats of weights, fp8 and int4: leave one out"),
        (("--model", "llama3.1-8b", "--gpu-memory-utilization", "1.2"), "from 0.0001 to 1, such as 0.9"),
    ],
)
def test_a_format_or_share_that_cannot_be_is_one_line(run, argv, said):
    assert_one_line(run("point", "--device", "h100", *argv), 2, said)


def test_strict_kernels_take_what_a_model_was_released_in(run):
    named = ("--device", "h100", "--model", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M")
    assert point(run, *named, "--strict-kernels").startswith("H100  llama3.2-1b  q4_k_m weights  ")
    assert point(run, "--device", "h100", "--model", "llama3.1-8b", "--weights", "fp8", "--strict-kernels")
