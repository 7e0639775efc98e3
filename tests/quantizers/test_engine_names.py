"""Names of KV-cache types as engines spell them: what stores the same, what is refused, and both in commands."""

import json

import pytest

from cases import each
from dse import quantizers
from dse.core.errors import InputError
from dse.quantizers import FAMILIES, engine_names
from dse.quantizers.engine_names import every, offered
from factories import assert_one_line

NAMES = list(every(FAMILIES))

#: the names of each engine, as its help prints them, and of its forks (sources in the table)
AS_PRINTED = {
    "vLLM": "auto half float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 "
    "turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc int4_per_token_head int8_per_token_head "
    "fp8_per_token_head nvfp4 nvfp4_4over6 octave_k3v4 octave_k3v3 octave_k3v3_compact ultraquant_4bit kvarn_k4v2_g128",
    "SGLang": "auto fp8_e5m2 fp8_e4m3 mxfp8 bf16 bfloat16 nvfp4 fp4_mx_block16 fp4_e2m1",
    "TensorRT-LLM": "auto fp8 nvfp4 int8_kv_cache fp8_kv_cache nvfp4_kv_cache",
    "llama.cpp": "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1 q6_0 q8_kv turbo2 turbo3 turbo4",
    "LMDeploy": "quant_policy_4 quant_policy_8 quant_policy_16 quant_policy_17 quant_policy_42",
}


def test_the_table_has_every_name_of_each_engine_once():
    found = {engine: [one.name for one in NAMES if one.engine == engine] for engine in AS_PRINTED}
    assert {engine: sorted(names) for engine, names in found.items()} == {
        engine: sorted(names.split()) for engine, names in AS_PRINTED.items()
    }
    assert {one.engine for one in NAMES} == set(AS_PRINTED) == set(engine_names.OPTIONS)
    assert all(one.source for one in NAMES)


def test_a_name_stands_for_the_same_in_every_engine():
    meant = {}
    for one in NAMES:
        assert meant.setdefault(one.name, (one.text, one.missing)) == (one.text, one.missing), one.name


@each(
    ("name", "canonical"),
    [
        ("auto", "fp16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("f16", "fp16"),
        ("bfloat16", "bf16"),
        ("bf16", "bf16"),
        ("fp8", "fp8"),
        ("fp8_e4m3", "fp8"),
        ("fp8_inc", "fp8"),
        ("FP8_E4M3", "fp8"),
        ("fp8-e4m3", "fp8"),
        (" F16 ", "fp16"),
        ("int8_kv_cache", "int8:granularity=tensor"),
        ("INT8_KV_CACHE", "int8:granularity=tensor"),
        ("fp8_kv_cache", "fp8"),
        ("q8_0", "q8_0"),
        ("Q4-1", "q4_1"),
        ("IQ4_NL:rotate=off", "iq4_nl:rotate=off"),
        ("int8_kv_cache:scale=fp16", "int8:granularity=tensor,scale=fp16"),
    ],
)
def test_engines_names_are_taken_and_ours_are_told(name, canonical):
    assert quantizers.parse(name).name == canonical


def test_e5m2_is_that_of_fp8_or_a_family_of_its_own():
    assert quantizers.parse("FP8-E5M2") == quantizers.parse("fp8_e5m2" if "fp8_e5m2" in FAMILIES else "fp8:format=e5m2")


def test_an_offered_name_is_a_quantizer_and_no_other_is_offered():
    for one in offered(FAMILIES):
        assert quantizers.parse(one.name).name == one.text
    left = {one.name for one in NAMES} - {one.name for one in offered(FAMILIES)}
    for name in left:
        with pytest.raises(InputError):
            quantizers.parse(name)


def test_the_names_of_a_family_stand_for_it():
    for name, family in FAMILIES.items():
        assert {one.text.partition(":")[0] for one in family.engines} <= {name}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("f32", "llama.cpp's f32 stores 32 bits, which no family here does: nearest is fp16"),
        ("quant_policy_42", "LMDeploy's quant_policy_42 has rotated keys in 3 bits"),
        ("octave", "nearest is turboquant_k3v4_nc"),
        ("octave_k3v3_compact", "has keys and values in 3 bits"),
        ("UltraQuant", "ultraquant_4bit has E2M1 with a scale of 8 bits for 32 channels"),
        ("kvarn_k2v2_g128", "nearest is kivi:bits=4"),
        ("fp8_e4m2", "did you mean"),
        ("bfloat61", "did you mean bfloat16"),
        ("zzz", "known: "),
        ("x" * 100, "known: "),
    ],
)
def test_what_no_family_stores_is_refused_with_what_is_near(name, words):
    with pytest.raises(InputError) as problem:
        quantizers.parse(name)
    assert words in str(problem.value)
    assert len(problem.value.lines()) == 1


def test_the_options_of_engines_are_those_of_quantizers(run):
    point = ("point", "--device", "a100-80gb", "--model", "llama2-7b", "--json")
    found = {}
    for key, value, both in (
        ("--key-quantizer", "--value-quantizer", "--quantizer"),
        ("-ctk", "-ctv", "--kv-cache-dtype"),
        ("--cache-type-k", "--cache-type-v", "--kv-cache-dtype"),
    ):
        code, out, _ = run(*point, both, "fp8_e4m3", key, "q8_0", value, "f16")
        assert code == 0
        found[key] = json.loads(out)
        code, out, _ = run(*point, both, "fp8_e4m3")
        assert json.loads(out)["quantizer"] == "fp8"
    assert found["-ctk"] == found["--cache-type-k"] == found["--key-quantizer"]
    assert found["-ctk"]["quantizer"] == "K q8_0 / V fp16"


@pytest.mark.parametrize("command", ["point", "simulate", "traffic azure-conv", "ring", "ask cross"])
def test_commands_take_the_engines_option(run, command):
    done = run(*command.split(), "--device", "a100-80gb", "--model", "llama2-7b", "--kv-cache-dtype", "f32")
    assert_one_line(done, 2, "nearest is fp16")


def test_the_list_and_a_family_say_what_engines_call_it(run):
    rows = {row["name"]: row for row in json.loads(run("list", "quantizers", "--json")[1])}
    assert {"auto", "half", "float16", "f16"} == set(rows["fp16"]["in_engines"].split(", "))
    assert rows["q8_0"]["in_engines"] == rows["kivi"]["in_engines"] == "-"
    shown = json.loads(run("show", "bfloat16", "--json")[1])
    engines = {row["name"]: row["value"] for row in shown if row["kind"] == "engine"}
    assert engines == {
        "vLLM bfloat16": "bf16",
        "SGLang bfloat16": "bf16",
        "SGLang bf16": "bf16",
        "llama.cpp bf16": "bf16",
    }
