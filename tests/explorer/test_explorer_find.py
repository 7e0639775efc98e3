"""The search box: what people type and paste, as fields of a design."""

import pytest

from dse.core.errors import InputError
from dse.explorer import common_fields, find
from dse.specs import catalog, server_flags
from dse.specs.workload import ASKED
from explorer_page import address_of, opened, plain, press, said, wrong

LLAMA = {"model": "llama3.1-70b", "weights": None}
QWEN = {"model": "qwen3-8b", "weights": None}
H200 = {"device": "h200"}

#: a question in words, and the fields that it sets
SENTENCE = "Llama 3.1 70B on 8x H200, 8k in, 500 out, within 50 ms and 2 s at 20 requests/s"
ASKED_FOR = {
    **LLAMA,
    **H200,
    "devices": 8,
    "input": 8192,
    "output": 500,
    "tpot_limit": 50.0,
    "ttft_limit": 2.0,
    "load": "rate",
    "rate": 20.0,
}


@pytest.mark.parametrize(
    ("text", "values", "left_out"),
    [
        ("Llama 3.1 70B", LLAMA, []),
        ("Llama-3.1-70B-Instruct", LLAMA, []),
        ("deepseek-r1", {"model": "deepseek-v3", "weights": None}, []),
        ("H100 SXM", {"device": "h100"}, []),
        ("8x H200", {**H200, "devices": 8}, []),
        ("https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct", LLAMA, []),
        ("huggingface.co/meta-llama/Llama-3.1-70B-Instruct/tree/main", LLAMA, []),
        ("Llama 3.1 70B on 8x H200", {**LLAMA, **H200, "devices": 8}, []),
        ("Llama 3.1 70B 8x H200", {**LLAMA, **H200, "devices": 8}, []),
        (SENTENCE, ASKED_FOR, []),
        (
            "qwen3-8b 4k in/500 out, 1,000 at once",
            {**QWEN, "input": 4096, "output": 500, "load": "batch", "batch": 1000},
            [],
        ),
        ("H200, 100 agents", {**H200, "load": "sessions", "sessions": 100}, []),
        ("TTFT below 500 ms, TPOT 0.05 s", {"ttft_limit": 0.5, "tpot_limit": 50.0}, []),
        ("50 ms TTFT and 2 s TPOT", {"ttft_limit": 0.05, "tpot_limit": 2000.0}, []),
        ("8k context, tpot 30, ttft 2", {"input": 8192, "tpot_limit": 30.0, "ttft_limit": 2.0}, []),
        (
            "Does Llama 3.1 70B in FP8 weights fit on two H200 with 32 requests of 8k in, 500 out?",
            {
                **LLAMA,
                **H200,
                "weights": "fp8",
                "devices": 2,
                "input": 8192,
                "output": 500,
                "load": "batch",
                "batch": 32,
            },
            [],
        ),
        ("20 rps of qwen3-8b", {**QWEN, "load": "rate", "rate": 20.0}, []),
        ("100 sessions of 20 turns", {"load": "sessions", "sessions": 100, "turns": 20}, []),
        ("FP8 weights", {"weights": "fp8"}, []),
        (
            "qwen3-8b on 4 H200, fp8 KV, batch 24",
            {**QWEN, **H200, "devices": 4, "quantizer": "fp8", "parameters": "", "load": "batch", "batch": 24},
            [],
        ),
        ("48 concurrent requests", {"load": "batch", "batch": 48}, []),
        ("100 users at once, prompts of 2k tokens", {"input": 2048, "load": "batch", "batch": 100}, []),
        ("25 tok/s per user, 16k prompts", {"input": 16384, "tpot_limit": 40.0}, []),
        ("first token within 500 ms, each token within 20 ms", {"ttft_limit": 0.5, "tpot_limit": 20.0}, []),
        ("What if the memory bandwidth were 4 TB/s?", {"edits": "memory_bandwidth=4 TB/s"}, []),
        ("H200 vs L40S, qwen3-8b", {**H200, **QWEN}, ["'L40S': a second device: add it below the table"]),
        (
            "two RTX 5090, bf16 weights against FP8 weights",
            {"device": "rtx-5090", "devices": 2, "weights": "bf16"},
            ["'FP8 weights': a second format of the weights: duplicate a design, and change it there"],
        ),
        (
            "H200 with 900 GB/s links, 0 tok/s per user",
            H200,
            [
                "tpot_limit = '0': must be a number from 0.001 to 1,000,000",
                "'900 GB/s links': no model or device that is "
                "known: give a model, a device, 8x H200, or load a config.json under Files",
            ],
        ),
        (
            "Lama 3.1 70B on 8x H200, 8k in",
            {**H200, "devices": 8, "input": 8192},
            [
                "'Lama 3.1 70B': no model or device that is known: did you mean llama3.1-70b, llama3.1-405b, "
                "llama-3.3-70b?"
            ],
        ),
        (
            "H200 at 1.2.3 requests/s, 0 in",
            H200,
            [
                "input = '0': must be a whole number from 1 to 1,073,741,824",
                "rate = '1.2.3': must be a number from 1e-06 to 1,000,000",
            ],
        ),
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", {"model": "llama3.1-70b", "weights": "fp8"}, []),
        (
            "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size=4 --kv-cache-dtype fp8_e4m3 "
            "--max-model-len 32768 --gpu-memory-utilization 0.95 --enable-prefix-caching --port 8000",
            {
                "stack": "vllm",
                **LLAMA,
                "devices": 4,
                "pp": 1,
                "quantizer": "fp8",
                "parameters": "",
                "max_model_len": 32768,
                "gpu_memory_utilization": 0.95,
                "prefix_cache": "on",
            },
            ["--port 8000"],
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --quantization fp8",
            {"stack": "vllm", "model": "deepseek-v3", "weights": "fp8-block", "devices": 8, "pp": 1, "ep": 8},
            [],
        ),
        (
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --trust-remote-code",
            {"stack": "sglang", "model": "deepseek-v3", "weights": None, "devices": 8, "pp": 1},
            [],
        ),
        (
            "./llama-server -m models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf -ctk q8_0 -ctv q4_0 -c 8192 -ngl 99 -np 4 "
            "-fa on",
            {
                "stack": "llama.cpp",
                "model": "llama3.1-8b",
                "weights": "q4_k_m",
                "quantizer": "q8_0",
                "parameters": "",
                "value_quantizer": "q4_0",
                "value_parameters": "",
                "max_total_tokens": 8192,
                "n_gpu_layers": 99,
                "max_num_seqs": 4,
            },
            ["-fa on"],
        ),
        (
            "vllm serve Qwen/Qwen3.6-27B --enforce_eager --mamba-ssm-cache-dtype float16 --max_num_seqs 512 "
            '--kv-cache-memory-bytes 40GiB --speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\'',
            {
                "stack": "vllm",
                "model": "qwen3.6-27b",
                "weights": None,
                "cuda_graphs": False,
                "state_type": "float16",
                "max_num_seqs": 512,
                "kv_cache_memory": 40 * 2**30,
                "speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}',
            },
            [],
        ),
        (
            "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp=2 --enable-dp-attention "
            "--max-total-tokens 9",
            {
                "stack": "sglang",
                "model": "qwen3-32b",
                "weights": None,
                "devices": 2,
                "pp": 1,
                "dp_attention": True,
                "max_total_tokens": 9,
            },
            [],
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3 --data-parallel-size 8 --enable-expert-parallel --max-num-seqs 64",
            {
                "stack": "vllm",
                "model": "deepseek-v3",
                "weights": None,
                "devices": 8,
                "pp": 1,
                "ep": 8,
                "dp_attention": True,
                "max_num_seqs": 512,
            },
            [],
        ),
        (
            "vllm serve Qwen/Qwen3-8B -tp 2 --data-parallel-size 4 --kv-cache-dtype fp8_e5m2",
            {"stack": "vllm", **QWEN, "devices": 2, "pp": 1, "quantizer": "fp8", "parameters": "format=e5m2"},
            ["data parallel 4"],
        ),
        (
            "python -m sglang.launch_server --model-path zai-org/GLM-4.7 --tp 4 --dp-size 4 --enable-dp-attention "
            "--speculative-algorithm NEXTN --speculative-num-steps 3",
            {
                "stack": "sglang",
                "model": "glm-4.7",
                "weights": None,
                "devices": 4,
                "pp": 1,
                "dp_attention": True,
                "speculative_config": '{"method": "mtp", "num_speculative_tokens": 3}',
            },
            [],
        ),
        (
            "trtllm-serve Qwen/Qwen3-8B --tp_size 4 --kv_cache_dtype fp8 --max_batch_size 64",
            {
                "stack": "trtllm",
                **QWEN,
                "devices": 4,
                "pp": 1,
                "quantizer": "fp8",
                "parameters": "",
                "max_num_seqs": 64,
            },
            [],
        ),
        (
            "llama-server -hf unsloth/Qwen3-8B-GGUF:Q8_0 -sm layer -ts 1,1 --no-kv-offload",
            {"stack": "llama.cpp", "model": "qwen3-8b", "weights": "q8_0", "devices": 2, "pp": 2, "kv_offload": 1.0},
            [],
        ),
        ("llama-server -m Qwen3-8B.gguf -ts 3,1", {"stack": "llama.cpp", **QWEN}, ["split 3,1"]),
        (
            "vllm serve /own/model --tp eight --pp 2",
            {"stack": "vllm", "devices": 2, "pp": 2},
            ["/own/model", "--tp eight"],
        ),
    ],
)
def test_what_people_type(text, values, left_out):
    found = find.find(text)
    assert (found.values, [one.strip() for one in found.left_out]) == (values, left_out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lama 3.1 70b", "no model or device that is known: did you mean llama3.1-70b"),
        ("Ling 2.6", "no file of it ships: give its config.json; nearest by shape is"),
        ("xyz", "no model or device that is known: give a model, a device, 8x H200"),
        ("xyz, 0 in", "input = '0': must be a whole number.*; 'xyz': no model"),
        ("vllm serve 'open", "close the quotes"),
        ("serve --port 1", "nothing that a design has"),
        (" , ;", "names nothing: give a model"),
    ],
)
def test_what_is_not_known(text, message):
    with pytest.raises(InputError, match=message):
        find.find(text)


def test_every_field_of_a_command_is_one_of_a_page():
    work = {ASKED[name].key for engine in server_flags.engines().values() for name in engine.flags if name in ASKED}
    assert work <= {one.key for one in (*common_fields.DESIGN, *common_fields.SCENARIO)}


def ask(page, text):
    """Type a text into the box; returns what the page says of it."""
    page.text_input(key="find").set_value(text).run()
    assert not page.exception
    said = [plain(one.value) for one in page.caption if plain(one.value).startswith("Set: ")]
    assert page.text_input(key="find").value == ("" if said else text)  # to be mended, not typed anew
    return next((plain(one.value) for one in page.caption if plain(one.value).startswith("Set: ")), "")


def test_a_sentence_sets_each_field_of_the_question():
    page = opened("answer")
    assert ask(page, SENTENCE).startswith(
        "Set: TPOT ≤ (ms): 50, TTFT ≤ (s): 2, Tokens in: 8,192, Tokens out: 500, Requests a second: 20, "
        "Load: requests a second"
    )
    wanted = {key: value for key, value in ASKED_FOR.items() if key != "weights"}
    assert {key: page.session_state[key] for key in wanted} == wanted
    assert page.number_input(key="rate").value == 20
    assert "batch" not in {one.key for one in page.number_input}
    assert len(page.sidebar.radio[0].options) == 3
    assert "tp 8" in said(page)


def test_weights_and_numbers_of_the_device_named_with_the_question_hold_for_all_designs():
    """Else its verdict would compare unlike things; a design on a device of its own keeps that device's numbers."""
    page = opened("answer", designs="-~~quantizer.fp8~~own_device.b200")
    ask(page, "Llama 3.1 70B FP8 weights on 2x H200 with 4 TB/s memory bandwidth")
    edited = "edits.memory_bandwidth=4 TB/s~"
    assert address_of(page)["designs"] == (
        f"{edited}weights.fp8~~{edited}quantizer.fp8~weights.fp8~~own_device.b200~weights.fp8"
    )
    ask(page, "H100")
    assert "edits" not in address_of(page)["designs"]


def test_settings_of_a_server_hold_for_all_designs_and_its_format_for_the_open_one():
    page = opened("answer", designs="-~~quantizer.int4_per_token_head")
    ask(page, "vllm serve Qwen/Qwen3-32B --kv-cache-dtype fp8 --max-num-seqs 48 --enforce-eager")
    first, second = (design.values for design in page.session_state["explorer"].tray.designs)
    assert {**first, "quantizer": "int4_per_token_head"} == dict(second)
    assert first == {"quantizer": "fp8", "stack": "vllm", "max_num_seqs": 48, "cuda_graphs": False}


def test_the_box_says_which_limits_stay_and_what_stands_for_a_model():
    page = opened("answer", tpot_limit="40")
    assert ask(page, "Llama 3.3 70B on 4 H100").endswith(
        "Language model: llama3.1-70b, Device: h100, Number: 4. llama3.1-70b counts for 'Llama 3.3 70B', of the same "
        "shape. As before: TPOT ≤ (ms): 40."
    )
    assert ask(page, "Llama 3.1 70B, TPOT 30 ms").endswith("Language model: llama3.1-70b.")
    type_into(page, "own_model", "Llama 3.3 70B")
    assert "llama3.1-70b counts for 'Llama 3.3 70B'" in "".join(plain(one.value) for one in page.caption)


def test_the_box_says_what_it_took_and_what_it_did_not():
    page = opened("answer")
    taken = ask(page, "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 2 --max-num-seqs 0")
    assert (page.selectbox(key="model").value, page.number_input(key="devices").value) == ("llama3.1-70b", 2)
    assert "Number: 2" in taken
    assert "not taken: max" in taken
    taken = ask(page, "Lama 3.1 70B on 4x H100")
    assert taken.startswith("Set: Device: h100, Number: 4; not taken: 'Lama 3.1 70B': no model")
    assert page.selectbox(key="model").value == "llama3.1-70b"
    assert ask(page, "xyz") == ""
    assert any("no model or device that is known" in line for line in wrong(page))
    assert page.selectbox(key="model").value == "llama3.1-70b"


def test_what_the_current_design_has_of_its_own_gives_way_to_the_box():
    page = opened("answer", designs="own_device.b200~tp.2~~own_device.b200~quantizer.fp8", devices="4", device="h100")
    ask(page, "8x H200")
    assert address_of(page) == {"devices": "8", "designs": "-~~own_device.b200~quantizer.fp8"}


def type_into(page, key, text):
    """Write a name into a list that has it not, as a browser may."""
    box = page.selectbox(key=key)
    box.options.append(text)
    box.set_value(text).run()
    assert not page.exception


def test_a_name_typed_into_a_field_of_the_design_is_its_own():
    page = opened("answer")
    type_into(page, "own_device", "RTX 5090")
    type_into(page, "own_model", "neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8")
    assert [design.values.get("weights") for design in page.session_state["explorer"].tray.designs] == [
        "fp8",
        None,
        None,
    ]
    type_into(page, "own_model", "Gemma 3 12B")
    assert address_of(page)["designs"].split("~~")[0] == "own_model.gemma-3-12b~own_device.rtx-5090"
    assert "device" not in address_of(page)
    type_into(page, "model", "Llama 3.1 8B")
    assert address_of(page)["model"] == "llama3.1-8b"


FAST = "edits.memory_bandwidth=9 TB/s"


@pytest.mark.parametrize("way", ["list", "box", "file"])
def test_another_device_of_the_question_takes_changed_numbers_back(way):
    """They are of the device before; a design with a device of its own keeps its own. Undo brings all of it back."""
    designs = f"{FAST}~~own_device.b200~{FAST}~~{FAST}~quantizer.fp8"
    app = opened("answer", designs=designs)
    if way == "list":
        app.selectbox(key="device").select("h100").run()
    elif way == "box":
        ask(app, "H100")
    else:
        text = catalog.device_text(catalog.device_files()["h100"]).encode()
        app.file_uploader[0].upload("mine.toml", text, "application/toml").run()
    assert not app.exception
    assert address_of(app)["designs"] == f"-~~own_device.b200~{FAST}~~quantizer.fp8"
    press(app, "Undo")
    assert address_of(app) == {"designs": designs}
    ask(app, "4x H200")  # the same device
    assert address_of(app) == {"devices": "4", "designs": designs}


def test_another_device_of_all_designs_takes_their_changed_numbers_back():
    app = opened("answer", designs=f"quantizer.fp8~~{FAST}")
    app.checkbox(key="tray all").check().run()
    app.selectbox(key="own_device").select("b200").run()
    assert address_of(app)["designs"] == "own_device.b200~quantizer.fp8~~own_device.b200"
