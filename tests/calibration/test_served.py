"""Kernels of whole steps: bytes of each format by hand, known parameters found again, and the package's tables."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from calibration import served
from dse.calibrate import table
from dse.cli.main import cli
from dse.core.errors import InputError
from dse.specs import catalog
from dse.specs.stack import SERVED, WeightCode

BANDWIDTH, PEAK = 3.35e12, 989e12
US = 1e-6


def timed(flops, n_bytes, launch=8 * US, memory=0.8, rate=0.6, peak=PEAK):
    """A start and the root of the squares of both ceilings."""
    return launch + np.hypot(flops / (rate * peak), n_bytes / (memory * BANDWIDTH))


def products(codes="bfloat16", of_weight=2.0, of_activation=2.0, noise=0.02, **reach):
    """A table as the package has it: m, n, k and milliseconds."""
    rng, rows = np.random.default_rng(4), []
    for m in (1, 4, 16, 64, 128, 256, 1024, 4096, 8192):
        for n in (4096, 6144, 14336, 28672):
            for k in (4096, 8192, 14336):
                seconds = timed(2.0 * m * n * k, n * k * of_weight + m * k * of_activation + 2.0 * m * n, **reach)
                rows.append((codes, m, n, k, 1e3 * seconds * np.exp(noise * rng.standard_normal())))
    found = pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"])
    return found.assign(device="H100", framework="vLLM", version="0.1")


def test_bytes_of_a_product_by_hand():
    frame = products(noise=0.0)
    rows = served._products(frame, "bf16", cache=0.0)
    one = rows.flops.argmin()
    # m = 1, n = 4,096, k = 4,096: weights 33,554,432 B, activations 8,192 B in and 8,192 B out
    assert (rows.flops[one], rows.n_bytes[one]) == (2 * 4096**2, 33_554_432 + 8_192 + 8_192)
    assert rows.is_decode[one]


@pytest.mark.parametrize(
    ("code", "name", "weight", "activation"),
    [
        ("fp8", "fp8", 1.0, 1.0),
        ("fp8_block", "fp8_block", 1.0, 1.0),
        ("int8", "int8_wo", 1.0, 2.0),
        # codes of 4 bits; a scale of 8 bits for 16 weights, and of 16 bits for 128
        ("nvfp4", "nvfp4", 0.5 + 1 / 16, 0.5 + 1 / 16),
        ("int4", "int4_wo", 0.5 + 2 / 128, 2.0),
    ],
)
def test_bytes_of_formats_by_hand(code, name, weight, activation):
    frame = products(name, noise=0.0)
    rows = served._products(frame, code, cache=0.0)
    one = rows.flops.argmin()
    assert rows.n_bytes[one] == pytest.approx(4096 * 4096 * weight + 4096 * activation + 2 * 4096)


def test_every_format_of_the_specs_is_read():
    # 8-bit integers and GGUF are in no kernel table: fitted to whole steps (calibration/frameworks.py, backends.py)
    assert set(served._FORMATS) == set(WeightCode.__args__) - {"w8a8", "gguf", "gguf_grid"}
    assert served._FORMATS["mxfp4"][1] == 0.5 + 1 / 32


def test_what_a_cache_holds_is_no_step_of_a_server():
    frame = products(noise=0.0)
    whole, beyond = (served._products(frame, "bf16", cache) for cache in (0.0, 100e6))
    assert beyond.is_decode.sum() < whole.is_decode.sum()
    assert (~beyond.is_decode).sum() == (~whole.is_decode).sum()
    assert beyond.n_bytes[beyond.is_decode].min() > 100e6
    assert served._products(frame.head(5), "bf16", 0.0) is None
    assert served._products(frame, "fp8", 0.0) is None


def test_of_several_kernels_the_fastest_counts():
    frame = products(noise=0.0)
    slow = frame.assign(latency=3 * frame["latency"])
    both = served._products(pd.concat([slow, frame], ignore_index=True), "bf16", 0.0)
    once = served._products(frame, "bf16", 0.0)
    assert sorted(both.measured_s) == pytest.approx(sorted(once.measured_s))


def test_known_parameters_are_found_again():
    rows = served._products(products(), "bf16", 0.0)
    outcome = served._fit("products.bf16", rows, BANDWIDTH, PEAK)
    assert outcome.parameters == pytest.approx({"launch": 8 * US, "memory_frac": 0.8, "flops_frac": 0.6}, rel=0.06)
    assert outcome.trusted
    assert outcome.errors["decode"]["mean"] < 0.04
    rows.measured_s[::9] *= 6
    moved = served._fit("products.bf16", rows, BANDWIDTH, PEAK)
    assert moved.parameters == pytest.approx(outcome.parameters, rel=0.15)


def test_what_errs_too_much_is_not_written():
    rng = np.random.default_rng(1)
    rows = served._products(products(), "bf16", 0.0)
    wild = served.KernelRows(
        rows.flops,
        rows.n_bytes,
        rows.measured_s * np.exp(rng.standard_normal(len(rows.flops))),
        rows.is_decode,
        rows.source,
    )
    bad, good = (served._fit(f"products.{code}", own, BANDWIDTH, PEAK) for code, own in (("fp8", wild), ("bf16", rows)))
    assert not bad.trusted
    before = {"stacks": {"vllm": {"attention": {"kept": 1}, "products": {"fp8": {}}}, "other": {}}}
    written = served.with_served(before, "vllm", [bad, good])["stacks"]
    assert set(written["vllm"]) == {"attention", "products"}
    assert set(written["vllm"]["products"]) == {"bf16"}
    assert written["other"] == {}


def test_experts_by_hand():
    frame = pd.DataFrame(
        {
            "moe_dtype": "bfloat16",
            "num_tokens": [1] * 25,
            "hidden_size": 4096,
            "inter_size": 1024,
            "topk": 2,
            "num_experts": 8,
            "moe_tp_size": 2,
            "moe_ep_size": 1,
            "distribution": "balanced",
            "latency": np.linspace(1, 2, 25),
            "device": "H100",
            "framework": "vLLM",
            "version": "0.1",
        }
    ).assign(hidden_size=range(4096, 4096 + 25 * 256, 256))
    rows = served._experts(frame, "bf16", cache=0.0)
    one = rows.flops.argmin()
    # one token chooses 2 of 8 experts; an expert's three matrices of 4,096 x 1,024 are halved over two devices
    expert = 3 * 4096 * 1024 / 2
    assert rows.flops[one] == 2 * 2 * expert
    # weights of 2 experts; of each, inputs and outputs of 4,096 and three of 512 between, 2 B each
    assert rows.n_bytes[one] == pytest.approx(2 * expert * 2 + 2 * 2 * (2 * 4096 + 3 * 512))


def test_routing_is_the_uneven_one_where_there_is_one():
    frame = pd.DataFrame(
        {
            "moe_dtype": "bfloat16",
            "num_tokens": 1,
            "hidden_size": [*range(4096, 4096 + 25 * 256, 256)] * 2,
            "inter_size": 1024,
            "topk": 2,
            "num_experts": 8,
            "moe_tp_size": 1,
            "moe_ep_size": 1,
            "distribution": ["balanced"] * 25 + ["power_law_1.01"] * 25,
            "latency": [1.0] * 25 + [2.0] * 25,
            "device": "H100",
            "framework": "vLLM",
            "version": "0.1",
        }
    )
    assert set(served._experts(frame, "bf16", 0.0).measured_s) == {2e-3}
    assert set(served._experts(frame[frame["distribution"] == "balanced"], "bf16", 0.0).measured_s) == {1e-3}


def test_latent_heads_by_hand():
    frame = pd.DataFrame(
        {
            "kv_cache_dtype": "fp8",
            "kernel_source": "trtllm_mla",
            "num_heads": 16,
            "batch_size": 4,
            "step": 999 + np.arange(25),
            "latency": 1.0,
            "device": "H100",
            "framework": "vLLM",
            "version": "0.1",
        }
    )
    rows = served._latent(frame, "fp8")
    # 4 sequences of 1,000 tokens of 512 + 64 elements of a byte; 16 heads score 576 and weigh 512 elements of each
    assert rows.flops[0] == 2 * 4 * 1000 * 16 * (576 + 512)
    assert rows.n_bytes[0] == 4 * 1000 * 576 + 2 * 4 * 16 * (576 + 512)
    assert served._latent(frame, "fp16") is None
    assert rows.cast is None
    # FlashAttention 3 reads no FP8 latents: SGLang writes all of them in 16 bits first
    assert served._latent(frame.assign(kernel_source="flash_attention"), "fp8").cast[0] == 4 * 1000 * 576


def test_what_writes_latents_in_16_bits_is_found_beside_the_kernel_of_16_bits():
    """300 G element/s beside a kernel that reaches 0.8 of the memory and 0.7 of the peak, over twice the bytes."""
    batch, context, heads = (
        grid.ravel().astype(float) for grid in np.meshgrid([1, 8, 64], [512, 4096, 32768], [16, 128])
    )
    elements, flops = batch * context * 576, 2 * batch * context * heads * 1088
    rows = served.KernelRows(
        flops,
        n_bytes=elements,
        measured_s=20 * US + elements / 300e9 + np.hypot(2 * elements / (0.8 * BANDWIDTH), flops / (0.7 * PEAK)),
        is_decode=np.ones(len(elements), bool),
        source="a table",
        cast=elements,
    )
    plain = served.FittedKernel(
        part="latent.fp16",
        parameters={"launch": 15 * US, "memory_frac": 0.8, "flops_frac": 0.7},
        n_points=20,
        errors={},
        source="a table",
    )
    found = served._fit("latent.fp8", rows, BANDWIDTH, PEAK, plain)
    assert found.parameters == pytest.approx(
        {"launch": 20 * US, "memory_frac": 0.4, "flops_frac": 0.7, "cast_rate": 300e9}, rel=1e-2
    )
    assert found.errors["decode"]["mean"] < 0.01
    assert served.fitted(found)["cast_rate"].endswith(" Gelement/s")


H100 = catalog.device("h100")
KNOWN = {"bf16": H100.stacks["vllm"].gemm}


def sparse(batches, contexts, **columns):
    """A table of GLM-5's layers on 8 devices as the package has it, its times still to be filled in."""
    rows = [(batch, s - 1) for batch in batches for s in contexts]
    return pd.DataFrame(rows, columns=["batch_size", "step"]).assign(
        **{
            "op_name": "dsa_generation_module",
            "model": "zai-org/GLM-5",
            "num_heads": 8,
            "kv_cache_dtype": "bfloat16",
            "gemm_type": "bfloat16",
            "latency": 1.0,
            "device": "H100",
            "framework": "vLLM",
            "version": "0.1",
            **columns,
        }
    )


def test_layers_that_read_chosen_tokens_by_hand():
    rows = served._sparse(sparse([4] * 25, [10_000]), "dsa", False, H100, KNOWN)
    # 4 queries of 8 heads score 576 and weigh 512 elements of each of 2,048 latents
    assert rows.flops[0] == 4 * 2048 * 2 * 8 * (576 + 512)
    assert rows.n_bytes[0] == 4 * 2048 * 576 * 2 + 2 * 4 * 8 * (576 + 512)
    # an index key of 128 elements of a byte and a scale of 4 B for each of 10,000 tokens
    assert (rows.module.index_bytes[0], rows.module.choices[0]) == (4 * 10_000 * 132, 10_000)
    # down to 2,048 for queries, and to 512 + 64 for latents; up to 192 + 64 of each head; 192 + 256 of it from the
    # latent; out; norms; 32 heads of the index, its key with a norm, and a weight for each head
    heads = 2048 * 8 * 256 + 512 * 8 * (192 + 256) + 8 * 256 * 6144
    index = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    weights = 6144 * (2048 + 576) + 2048 + 512 + heads + index
    gemm = KNOWN["bf16"]
    compute = 2 * weights * 4 / (gemm.flops_frac.si * PEAK)
    memory = 2 * weights / (gemm.memory_frac.si * BANDWIDTH)
    assert rows.module.products_s[0] == pytest.approx(5 * gemm.launch.si + np.hypot(compute, memory), rel=1e-3)


def test_which_rows_of_sparse_layers_count():
    frame = sparse([1, 2, 4, 8, 512], [100, 200, 400, 800, 1600])
    assert len(served._sparse(frame, "dsa", False, H100, KNOWN).flops) == 20  # 512 sequences run without a graph
    assert served._sparse(frame, "dsa", True, H100, KNOWN) is None
    assert served._sparse(frame, "dsa_shared", False, H100, KNOWN) is None
    assert served._sparse(frame, "dsa", False, H100, {}) is None
    shared = served._sparse(frame.assign(op_name="x_skip_indexer"), "dsa_shared", False, H100, KNOWN)
    assert not shared.module.index_bytes.any()
    assert not shared.module.choices.any()
    both = pd.concat([frame, frame.assign(gemm_type="fp8_block", latency=9.0)], ignore_index=True)
    assert set(served._sparse(both, "dsa", False, H100, KNOWN).measured_s) == {1e-3}


@pytest.mark.parametrize(
    ("kind", "model", "heads", "n_bytes", "index_bytes"),
    [
        # 16 blocks of 128 tokens, keys and values of 4 heads of 128; an index key of 128 16-bit elements
        ("msa", "MiniMaxAI/MiniMax-M3", 64, 2048 * 2 * 4 * 128, 256),
        # 512 entries and a window of 128 tokens, of 512 elements; 128 elements of FP4 for every 4 tokens
        ("csa", "DeepSeek-V4-Flash", 64, (512 + 128) * 512, 16),
        ("csa", "DeepSeek-V4-Pro", 128, 1152 * 512, 16),
        # an entry for every 128 tokens, all read
        ("hca", "DeepSeek-V4-Flash", 64, (8192 / 128 + 128) * 512, 0),
    ],
)
def test_what_other_sparse_layers_read_by_hand(kind, model, heads, n_bytes, index_bytes):
    frame = sparse([1] * 25, [8192], model=model, num_heads=heads, kv_cache_dtype="fp8_e4m3")
    rows = served._sparse(frame, kind, True, H100, KNOWN)
    io_bytes = 2 * heads * (256 if kind == "msa" else 1024)
    assert rows.n_bytes[0] == n_bytes + io_bytes
    assert rows.module.index_bytes[0] == 8192 * index_bytes


def made(launch):
    """Rows of known parameters: shares of 0.5 (memory), 0.4 (flops), 0.7 (index), 0.6 us for 1,000 tokens."""
    contexts = [256 * 2**i for i in range(10)]
    rows = served._sparse(sparse([1, 2, 4, 8, 16, 32, 64, 128, 256], contexts), "dsa", False, H100, KNOWN)
    seconds = served.predict_s(rows, np.array([launch, 1 / 0.5, 1 / 0.4, 1 / 0.7, 0.6, 1.0]), BANDWIDTH, PEAK)
    rows.measured_s[:] = seconds * np.exp(0.01 * np.random.default_rng(3).standard_normal(len(seconds)))
    return rows


def test_known_parameters_of_sparse_layers_are_found_again():
    outcome = served._fit("sparse.dsa", made(30.0), BANDWIDTH, PEAK)
    known = {"launch": 30 * US, "memory_frac": 0.5, "index_frac": 0.7, "choice": 0.6 * US}
    found = {name: outcome.parameters[name] for name in known}
    assert found == pytest.approx(known, rel=0.08)
    assert set(outcome.parameters) == {*known, "flops_frac"}
    assert outcome.errors["long"]["rows"] == 9 * 4
    assert outcome.errors["long"]["mean"] < 0.12  # of parameters fitted to shorter ones
    assert outcome.trusted
    assert served.fitted(outcome)["choice"].endswith(" us")


def test_layers_that_a_host_starts_one_by_one_are_not_written():
    assert not served._fit("sparse.dsa", made(150.0), BANDWIDTH, PEAK).trusted


def test_long_contexts_judge_a_fit_that_did_not_see_them():
    rows = made(30.0)
    rows.measured_s[rows.module.context > served.LONG_CONTEXT] *= 3
    assert not served._fit("sparse.dsa", rows, BANDWIDTH, PEAK).trusted


def prompts_of(**columns):
    """Prompts of DeepSeek-V3.2's and GLM-5's layers, their times still to be filled in."""
    of = {"deepseek-ai/DeepSeek-V3.2": (16, 64, 128), "zai-org/GLM-5": (8, 32, 64)}
    lengths = [256 * 2**i for i in range(8)]
    rows = [(model, n, s) for model, heads in of.items() for n in heads for s in lengths]
    frame = pd.DataFrame(rows, columns=["model", "num_heads", "isl"])
    usual = {"op_name": "dsa_context_module", "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 0}
    also = {"kernel_source": "FLASHMLA_SPARSE", "batch_size": 8, "latency": 1.0, "device": "H100", "framework": "vLLM"}
    return frame.assign(**{**usual, **also, "version": "0.1", **columns})


def test_prompts_of_chosen_tokens_by_hand():
    rows = served._chosen_prompts(prompts_of(), False, H100, KNOWN)
    at = int(np.flatnonzero((rows.heads == 16) & (rows.model == "deepseek-ai/DeepSeek-V3.2"))[4])  # of 4,096 tokens
    # causal up to 2,048 tokens, as many for each token beyond; a head scores 576 elements and weighs 512
    assert rows.read_flops[at] == 2 * 1088 * 8 * (2048 * 2049 / 2 + 2048 * 2048)
    assert rows.all_flops[at] == 2 * 1088 * 8 * 4096 * 2048
    assert rows.index_flops[at] == 8 * 4096 * 4097 / 2 * 2 * 64 * 128
    # SGLang computes short prompts by other kernels
    assert served._chosen_prompts(prompts_of(kernel_source="sglang_dsa_dense_mha_fa3"), False, H100, KNOWN) is None
    assert served._chosen_prompts(prompts_of(), True, H100, KNOWN) is None


def test_known_parameters_of_prompts_of_chosen_tokens_are_found_again():
    rows = served._chosen_prompts(prompts_of(), False, H100, KNOWN)
    rows.measured_s[:] = rows.predict_s(np.array([1 / 0.4, 0.25, 50.0]), 64, PEAK)
    outcome = served._fit_chosen("prompt.dsa", rows, PEAK)
    assert outcome.parameters == pytest.approx({"flops_frac": 0.4, "always_read": 0.25, "head_rows": 64}, rel=1e-2)
    assert outcome.errors["model"]["mean"] < 0.01
    assert outcome.trusted
    block = served.fitted(outcome)
    assert block["head_rows"] == 64
    assert "a model left out" in block["source"]
    rows.measured_s[rows.model == "zai-org/GLM-5"] *= 2
    assert not served._fit_chosen("prompt.dsa", rows, PEAK).trusted


def test_prompts_by_hand():
    frame = pd.DataFrame(
        {
            "kv_cache_dtype": "bfloat16",
            "head_dim": 128,
            "window_size": 0,
            "num_heads": 32,
            "batch_size": 2,
            "isl": 4096 + np.arange(25),
            "latency": 1.0,
            "device": "H100",
            "framework": "vLLM",
            "version": "0.1",
        }
    )
    rows = served._prompts(frame, 128)
    # scores and their product with the values, 2 FLOP a pair and element each, of half of the pairs
    assert rows.flops[0] == 2 * 2 * 32 * 128 * 4096 * 4096 * 2 / 2
    assert not rows.is_decode.any()
    assert served._prompts(frame, 64) is None
    assert served._prompts(frame.assign(window_size=4096), 128) is None


def test_only_the_package_and_device_files(tmp_path):
    with pytest.raises(InputError, match="are read from aiconfigurator-core only"):
        served.run("my.csv", str(tmp_path / "x.toml"), device="h100", stack="vllm")
    with pytest.raises(InputError, match=r"must end in \.toml"):
        served.run(table.PACKAGE, str(tmp_path / "x.json"), device="h100", stack="vllm")


def _is_there():
    try:
        return table.package_folder("H100").is_dir()
    except InputError:
        return False


@pytest.mark.skipif(not _is_there(), reason="aiconfigurator-core is not installed")
def test_shipped_kernels_come_from_the_package(tmp_path):
    out = tmp_path / "h100.toml"
    arguments = [
        table.PACKAGE,
        "--device",
        "h100",
        "--stack",
        "sglang",
        "--kernel",
        "served",
        "--out",
        str(out),
        "--json",
    ]
    result = CliRunner().invoke(cli.commands["calibrate"], arguments, catch_exceptions=False)
    parts = json.loads(result.output)["parts"]
    assert {part["part"] for part in parts} >= {"products.bf16", "products.fp8", "experts.fp8_block", "prompt.d128"}
    again, shipped = (catalog.device(name).stacks["sglang"] for name in (str(out), "h100"))
    for name in SERVED:
        mine, theirs = getattr(again, name), getattr(shipped, name)
        assert mine.keys() == theirs.keys()
        for code, fit in mine.items():
            for number, quantity in fit.quantities().items():
                assert quantity.si == pytest.approx(getattr(theirs[code], number).si, rel=0.02), (name, code, number)
