"""Tables of measured servers: what cells stand for, by hand, and what is refused."""

import pytest

from dse.calibrate.servers import read
from dse.core.errors import InputError

HEAD = (
    "id",
    "silicon_data_source",
    "backend",
    "backend_version",
    "model_path",
    "system",
    "precision",
    "isl",
    "osl",
    "batch_size",
    "tp_size",
    "pp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)
ROW = {
    "id": "a",
    "silicon_data_source": "",
    "backend": "vllm",
    "backend_version": "0.16.0",
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm",
    "precision": "bf16",
    "isl": "1000",
    "osl": "500",
    "batch_size": "8",
    "tp_size": "2",
    "pp_size": "1",
    "attention_dp_size": "1",
    "moe_tp_size": "",
    "moe_ep_size": "",
    "silicon_ttft_ms": "120.5",
    "silicon_tpot_ms": "7.25",
}


@pytest.fixture
def table(tmp_path):
    def write(*rows, head=HEAD):
        path = tmp_path / "servers.csv"
        lines = [",".join(head), *(",".join({**ROW, **row}[name] for name in head) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return write


def test_a_row_by_hand(table):
    (row,) = read(table({}))
    assert (row.id, row.line, row.stack, row.release, row.n_devices, row.concurrency) == (
        "a",
        2,
        "vllm",
        "0.16.0",
        2,
        8,
    )
    assert (row.spec.name, row.device.name, row.kv, row.reason) == ("llama3.1-8b", "H100", "fp16", "")
    assert (row.tpot_s, row.ttft_s) == (pytest.approx(7.25e-3), pytest.approx(0.1205))
    work = row.work
    assert (work.batch, work.input_tokens, work.output_tokens, work.tp, work.weights) == (8, 1000, 500, 2, "bf16")
    assert (work.stack, work.rounds) == ("vllm@0.16.0", 10)


def test_only_seven_columns_must_be_there(table):
    (row,) = read(table({}, head=("id", "backend", "model_path", "system", "isl", "osl", "batch_size")))
    assert (row.tpot_s, row.ttft_s, row.n_devices, row.work.weights) == (None, None, 1, "bf16")
    assert row.work.stack == "vllm@unknown"


@pytest.mark.parametrize(
    "source",
    [
        "db-dump/2026-04-27; config_id=606",
        "x; source_file=2025-11-03",
        # repeats times of a dump, digit by digit: 83.13 and 15.29 ms
        "source_file=kimi-k2.5-gap-analysis.csv; silicon_concurrency=4; aic_database_mode=SILICON",
    ],
)
def test_lengths_of_inferencex_are_nine_tenths(table, source):
    # drawn evenly from 0.8 to 1.0 of those stated
    (row,) = read(table({"silicon_data_source": source, "isl": "8192", "osl": "1024", "precision": "fp8"}))
    assert (row.work.input_tokens, row.work.output_tokens) == (7373, 922)
    assert (row.work.rounds, row.kv) == (10, "fp8")
    # a run of NVIDIA's own, in a folder of such a name
    own = "source_file=/home/aic-auto-gap-analysis/data/h100_sxm/sglang/0.5.1/Qwen.csv"
    (other,) = read(table({"silicon_data_source": own, "isl": "8192", "osl": "1024", "precision": "fp8"}))
    assert (other.work.input_tokens, other.work.output_tokens, other.work.rounds, other.kv) == (8192, 1024, 10, "fp16")


def test_what_rows_do_not_say_of_their_servers(table):
    """SGLang runs prompts first, so that equal lengths stay in step; TensorRT-LLM reserves, with a place less."""
    as_measured = {"silicon_data_source": "source_file=2025-11-03"}
    found = {}
    for name, cells in {
        "sglang": {"backend": "sglang"},
        "sglang x": {"backend": "sglang", **as_measured},
        "trtllm": {"backend": "trtllm"},
        "trtllm x": {"backend": "trtllm", **as_measured},
    }.items():
        (row,) = read(table(cells))
        found[name] = (row.work.rounds, row.work.admission, row.work.max_num_seqs)
    assert found == {
        "sglang": (1, "paged", None),
        "sglang x": (10, "paged", None),
        "trtllm": (10, "reserve", 7),
        "trtllm x": (10, "reserve", None),
    }


def test_the_share_of_memory_is_as_a_column_says_or_more_where_weights_fill_the_usual_one(table):
    cells = {"model_path": "meta-llama/Llama-3.1-70B-Instruct", "tp_size": "2", "system": "a100_sxm"}
    (usual,) = read(table(cells))  # 141 GB in 16 bits on two devices of 80 GB: 70.6 of 77.3 GB
    (filled,) = read(table({**cells, "precision": "fp8", "tp_size": "1", "attention_dp_size": "1"}))
    (told,) = read(table({**cells, "gpu_memory_utilization": "0.8"}, head=(*HEAD, "gpu_memory_utilization")))
    assert (usual.work.gpu_memory_utilization, told.work.gpu_memory_utilization) == (0.9, 0.8)
    assert filled.work.gpu_memory_utilization == 0.9
    # DeepSeek-R1 in FP8 on four B200s: 168 of 172 GB
    (tight,) = read(
        table(
            {
                "model_path": "deepseek-ai/DeepSeek-R1",
                "system": "b200_sxm",
                "precision": "fp8",
                "tp_size": "4",
                "backend": "sglang",
            }
        )
    )
    assert tight.work.gpu_memory_utilization == 0.95


MIXTURE = {"model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "precision": "fp8"}


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        # tp, attention dp, experts' tp, experts' ep -> tp of all, ep, own requests, devices
        (("8", "1", "8", "1"), (8, 1, False, 8)),
        (("8", "1", "1", "8"), (8, 8, False, 8)),
        (("1", "8", "1", "8"), (8, 8, True, 8)),
        # stated as the product of the experts' splits: 8 * 8 = 64 on 8 devices
        (("64", "1", "8", "8"), (8, 8, False, 8)),
        (("1", "64", "8", "8"), (8, 8, True, 8)),
        # 4 * 2 is no product of both: tp 8 as stated
        (("8", "1", "4", "4"), (8, 4, False, 8)),
        (("4", "2", "", ""), (8, 1, True, 8)),
        (("", "", "", ""), (1, 1, False, 1)),
    ],
)
def test_splits_by_hand(table, split, expected):
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    (row,) = read(table({**MIXTURE, **dict(zip(names, split, strict=True))}))
    assert (row.work.tp, row.work.ep, row.work.dp_attention, row.n_devices) == expected


@pytest.mark.parametrize(
    ("model", "backend", "source", "expected"),
    [
        # nvidia-master.yaml of InferenceX: { tp: 4, ep: 4 } of vLLM on 4 devices, with dp-attn of DeepSeek-V4
        ("moonshotai/Kimi-K2.5", "vllm", "db-dump/2026-04-27", (4, 4, False, 4)),
        ("deepseek-ai/DeepSeek-V4-Pro", "vllm", "db-dump/2026-04-27", (4, 4, True, 4)),
        # of others as stated: 4 groups of 4
        ("moonshotai/Kimi-K2.5", "vllm", "nvidia", (16, 16, True, 16)),
        ("moonshotai/Kimi-K2.5", "sglang", "db-dump/2026-04-27", (16, 16, True, 16)),
    ],
)
def test_devices_that_vllms_recipes_state_twice(table, model, backend, source, expected):
    split = {"tp_size": "4", "attention_dp_size": "4", "moe_tp_size": "1", "moe_ep_size": "16", "batch_size": "16"}
    (row,) = read(table({**MIXTURE, **split, "model_path": model, "backend": backend, "silicon_data_source": source}))
    assert (row.work.tp, row.work.ep, row.work.dp_attention, row.n_devices) == expected
    assert row.concurrency == 64


@pytest.mark.parametrize(
    ("model", "system", "backend", "precision", "day", "expected"),
    [
        # benchmarks/*.sh of InferenceX: no --kv-cache-dtype; added to MiniMax-M2.5 on B200 on 2026-04-03
        ("openai/gpt-oss-120b", "mi355x", "vllm", "fp4", "2026-05-01", ("fp16", "auto")),
        ("openai/gpt-oss-120b", "b200_sxm", "vllm", "fp4", "2026-05-01", ("fp8", "auto")),
        ("MiniMaxAI/MiniMax-M2.5", "h200_sxm", "vllm", "fp8", "2026-03-28", ("fp16", "auto")),
        ("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "vllm", "fp8", "2026-03-28", ("fp16", "auto")),
        ("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "vllm", "fp8", "2026-04-20", ("fp8", "auto")),
        # states are BF16 where FP8 keys and values are said
        ("Qwen/Qwen3.5-397B-A17B", "h200_sxm", "sglang", "fp8", "2026-03-10", ("fp8", "bfloat16")),
        ("Qwen/Qwen3.5-397B-A17B", "b200_sxm", "sglang", "bf16", "2026-03-10", ("fp16", "auto")),
        ("Qwen/Qwen3.5-397B-A17B", "mi355x", "sglang", "fp8", "2026-03-10", ("fp16", "auto")),
    ],
)
def test_types_of_the_cache_that_recipes_say(table, model, system, backend, precision, day, expected):
    cells = {"model_path": model, "system": system, "backend": backend, "precision": precision, "tp_size": "8"}
    (row,) = read(table({**cells, "silicon_data_source": f"db-dump/2026-06-01; measured={day}T00:00:00Z"}))
    assert (row.kv, row.work.state_type) == expected


@pytest.mark.parametrize(
    ("release", "day", "drafts"),
    [
        ("1.2.0rc6.post3", "", True),
        ("1.2.0rc6.post3", "2026-02-10", True),
        ("1.2.0rc6.post2", "2026-02-10", False),
        ("1.1.0rc2.post2", "2026-01-14", True),
        ("1.1.0rc2.post2", "2025-12-15", False),
        ("1.1.0rc2.post2", "", False),
    ],
)
def test_recipes_that_draft_are_not_predicted(table, release, day, drafts):
    """`off: v1.2.0rc6.post2 / mtp: v1.2.0rc6.post3` (perf-changelog.yaml of InferenceX, pull request 1488)."""
    source = f"db-dump/2026-04-27; measured={day}T00:00:00Z" if day else "db-dump/2026-04-27"
    cells = {**MIXTURE, "backend": "trtllm", "tp_size": "8", "backend_version": release, "silicon_data_source": source}
    (row,) = read(table(cells))
    assert (row.work is None) == drafts
    assert ("drafts (MTP)" in row.reason) == drafts
    (other,) = read(table({**cells, "model_path": "Qwen/Qwen3-32B"}))
    assert other.work is not None


def test_requests_at_once(table):
    # batch_size counts those of one group of attention; silicon_concurrency, where stated, all
    eight = {**MIXTURE, "tp_size": "1", "attention_dp_size": "8", "moe_ep_size": "8", "batch_size": "4"}
    assert read(table(eight))[0].concurrency == 32
    assert read(table({**eight, "silicon_data_source": "silicon_concurrency=96"}))[0].concurrency == 96


@pytest.mark.parametrize(
    ("model", "precision", "weights"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "fp8", "fp8"),
        ("deepseek-ai/DeepSeek-R1", "fp8", "fp8-block"),
        ("nvidia/DeepSeek-R1-0528-NVFP4", "fp4", "nvfp4-experts"),
        ("openai/gpt-oss-120b", "fp4", "mxfp4-experts"),
        ("openai/gpt-oss-120b", "bf16", "mxfp4-experts"),
        ("moonshotai/Kimi-K2.5", "int4", "int4-experts"),
        ("Qwen/Qwen3-32B-FP8", "", "fp8"),
        ("meta-llama/Llama-3.1-8B-Instruct", "nan", "bf16"),
    ],
)
def test_formats_of_weights(table, model, precision, weights):
    (row,) = read(table({"model_path": model, "precision": precision}))
    assert (row.work.weights, row.reason) == (weights, "")


@pytest.mark.parametrize("name", ["model_path", "system"])
def test_what_is_not_known_is_a_reason_of_its_row(table, name):
    rows = read(table({name: "a-thing-of-nobody"}, {"id": "b"}))
    assert [bool(row.reason) for row in rows] == [True, False]
    assert "a-thing-of-nobody" in rows[0].reason
    assert rows[0].tpot_s == pytest.approx(7.25e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"silicon_tpot_ms": "-3"}, ":2: silicon_tpot_ms = '-3': must be more than 0"),
        ({"silicon_tpot_ms": "fast"}, ":2: silicon_tpot_ms = 'fast': must be a number, such as 12.5"),
        ({"silicon_ttft_ms": "inf"}, ":2: silicon_ttft_ms = 'inf': must be a number, such as 12.5"),
        ({"batch_size": "0"}, ":2: batch_size = '0': must be a whole number from 1 to"),
        ({"batch_size": "1.5"}, ":2: batch_size = '1.5': must be a whole number from 1 to"),
        ({"isl": ""}, ":2: isl = '': must be a number, such as 32"),
        ({"osl": "1e12"}, ":2: osl = '1e12': must be a whole number from 1 to"),
        ({"isl": "1_024"}, ":2: isl = '1_024': must be a number, such as 32"),
        ({"id": " "}, ":2: id = '': must be there"),
        ({"tp_size": "two"}, ":2: tp_size = 'two': must be a number, such as 32"),
    ],
)
def test_bad_cells_are_named(table, change, words):
    path = table(change)
    with pytest.raises(InputError) as problem:
        read(path)
    assert f"{path}{words}" in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_stack_that_nobody_measured_is_predicted_by_the_nearest_and_marked(table):
    (row,) = read(table({"backend": "lmdeploy", "backend_version": "0.7"}))
    assert (row.stack, row.work.stack, row.reason) == ("lmdeploy", "vllm@0.7", "")
    assert row.marks == "nearest_stack: 'lmdeploy' was not measured: that of vllm"


@pytest.mark.parametrize(
    ("given", "kv"),
    [("auto", "fp16"), ("bfloat16", "bf16"), ("FP8_E4M3", "fp8"), ("fp8", "fp8"), ("int4", "int4"), ("NaN", "fp16")],
)
def test_how_keys_and_values_are_stored(table, given, kv):
    (row,) = read(table({"kv_cache_dtype": given}, head=(*HEAD, "kv_cache_dtype")))
    assert row.kv == kv


def test_a_type_of_keys_and_values_that_nobody_knows_is_a_reason(table):
    (row,) = read(table({"kv_cache_dtype": "int5"}, head=(*HEAD, "kv_cache_dtype")))
    assert "int5" in row.reason


def test_an_unknown_precision_is_a_reason(table):
    (row,) = read(table({"precision": "fp7"}))
    assert row.reason.endswith(":2: precision = 'fp7': must be one of fp8, fp4, int4, bf16, fp16")


def test_tables_that_cannot_be_read(table, tmp_path):
    for head, words in ((tuple(n for n in HEAD if n != "isl"), ":1: column isl is missing"),):
        with pytest.raises(InputError, match=words):
            read(table({}, head=head))
    path = table({}, {})
    with pytest.raises(InputError, match=r"servers\.csv:3: id = 'a': is given twice"):
        read(path)
    for content, words in (
        (",".join(HEAD) + "\n", "has a header but no rows"),
        (",".join(HEAD) + "\na,b\n", ":2: has 2 cells: the header has 17"),
        ("\0", "NUL byte"),
        ("", "is empty: docs/explanation/calibration.md has the columns"),
        ("id,id\na,b\n", "column 'id' is given twice"),
    ):
        (tmp_path / "servers.csv").write_text(content)
        with pytest.raises(InputError, match=words):
            read(path)
    (tmp_path / "servers.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        read(path)
    with pytest.raises(InputError):
        read(str(tmp_path / "none.csv"))


def test_blank_lines_do_not_count_and_lines_are_those_of_the_file(table, tmp_path):
    path = table({}, {"id": "b"})
    lines = (tmp_path / "servers.csv").read_text().splitlines()
    (tmp_path / "servers.csv").write_text("\n".join((lines[0], "", lines[1], "," * (len(HEAD) - 1), lines[2])) + "\n")
    assert [(row.id, row.line) for row in read(path)] == [("a", 3), ("b", 5)]


POOLS = {
    "prefill_num_workers": "3",
    "prefill_tp_size": "1",
    "prefill_attention_dp_size": "4",
    "prefill_moe_ep_size": "4",
    "decode_num_workers": "2.0",
    "decode_tp_size": "8",
    "decode_attention_dp_size": "1",
    "decode_moe_tp_size": "8",
    "decode_batch_size": "16",
}
#: a row of separate pools has no batch and no split of its own
APART = {**MIXTURE, **POOLS, "mode": "disagg", "backend": "sglang", "tp_size": "", "batch_size": ""}
APART_HEAD = (*HEAD, "mode", *POOLS)


def test_a_row_of_separate_pools_by_hand(table):
    (row,) = read(table(APART, head=APART_HEAD))
    assert (row.reason, row.n_prompt_servers, row.n_servers) == ("", 3, 2)
    assert (row.concurrency, row.n_devices) == (2 * 16, 3 * 4 + 2 * 8)
    prompts, decoding = row.prompt_work, row.work
    assert (prompts.tp, prompts.ep, prompts.dp_attention, prompts.batch, prompts.output_tokens) == (4, 4, True, None, 1)
    assert (decoding.tp, decoding.ep, decoding.dp_attention, decoding.batch) == (8, 1, False, 16)
    assert (prompts.input_tokens, decoding.input_tokens, decoding.output_tokens) == (1000, 1000, 500)
    assert row.prompt_point().work.n_devices == 4
    # requests of each group of attention are counted apart, and a source may say all
    each = {**APART, "decode_tp_size": "1", "decode_attention_dp_size": "8"}
    assert read(table(each, head=APART_HEAD))[0].concurrency == 2 * 8 * 16
    told = {**each, "decode_batch_size": "", "silicon_data_source": "silicon_concurrency=97"}
    (row,) = read(table(told, head=APART_HEAD))
    assert (row.concurrency, row.work.batch) == (97, 49)


@pytest.mark.parametrize(
    ("system", "backend", "kv"),
    [("h200_sxm", "sglang", "fp16"), ("b200_sxm", "sglang", "fp8"), ("h200_sxm", "trtllm", "fp8")],
)
def test_separate_pools_keep_what_their_recipes_say(table, system, backend, kv):
    """NVIDIA/srt-slurm, recipes/h200/8k1k/bs64-2p3d.yaml: SGLang's DeepSeek on H200 without a type of the cache."""
    dump = "db-dump/2026-04-27; silicon_concurrency=64"
    cells = {**APART, "silicon_data_source": dump, "system": system, "backend": backend, "precision": "fp8"}
    (row,) = read(table(cells, head=APART_HEAD))
    assert row.kv == kv


def test_separate_pools_are_known_by_mode_or_by_their_servers_and_lie_beside_others(table):
    rows = read(table({**POOLS, "mode": "agg"}, {"id": "b", **APART, "mode": ""}, head=APART_HEAD))
    assert [row.n_servers for row in rows] == [1, 2]
    assert [row.prompt_work is None for row in rows] == [True, False]
    head = tuple(name for name in APART_HEAD if name not in ("batch_size", "mode"))
    assert read(table(APART, head=head))[0].n_prompt_servers == 3
    with pytest.raises(InputError, match=r":2: batch_size = '': must be a number, such as 32"):
        read(table({**POOLS, "prefill_num_workers": "", "decode_num_workers": ""}, head=head))


def test_servers_that_are_not_stated_are_a_reason(table):
    unsaid = {"prefill_num_workers": "", "decode_num_workers": "nan", "silicon_data_source": "silicon_concurrency=9"}
    (row,) = read(table({**APART, **unsaid}, head=APART_HEAD))
    assert row.reason.startswith("prefill_num_workers, decode_num_workers: not stated")
    assert (row.spec.name, row.work, row.n_devices) == ("deepseek-v3", None, 0)


def test_an_image_that_dynamos_release_names_has_its_engines(table):
    image = "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1.post2"
    (row,) = read(table({"silicon_data_source": image, "backend": "trtllm", "backend_version": "0.8.1.post2"}))
    assert (row.release, row.work.stack) == ("1.2.0rc6.post2", "trtllm@1.2.0rc6.post2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prefill_num_workers": "0"}, ":2: prefill_num_workers = '0': must be a whole number from 1 to"),
        ({"decode_num_workers": "-2"}, ":2: decode_num_workers = '-2': must be a whole number from 1 to"),
        ({"decode_num_workers": "1.5"}, ":2: decode_num_workers = '1.5': must be a whole number from 1 to"),
        ({"prefill_tp_size": "0"}, ":2: prefill_tp_size = '0': must be a whole number from 1 to"),
        ({"decode_tp_size": "many"}, ":2: decode_tp_size = 'many': must be a number, such as 32"),
        ({"decode_batch_size": "0"}, ":2: decode_batch_size = '0': must be a whole number from 1 to"),
        ({"decode_batch_size": ""}, ":2: decode_batch_size = '': must be a number, such as 32"),
        ({"silicon_data_source": "silicon_concurrency=0"}, ":2: silicon_concurrency = '0': must be a whole number"),
    ],
)
def test_bad_cells_of_separate_pools_are_named(table, change, words):
    path = table({**APART, **change}, head=APART_HEAD)
    with pytest.raises(InputError) as problem:
        read(path)
    assert f"{path}{words}" in str(problem.value)
    assert "\n" not in str(problem.value)


def test_separate_pools_without_their_columns(table):
    head = tuple(name for name in APART_HEAD if name not in ("decode_num_workers", "decode_tp_size"))
    with pytest.raises(
        InputError, match=r":2: mode = 'disagg': columns decode_num_workers, decode_tp_size are missing"
    ):
        read(table(APART, head=head))
