"""Shipped models of counted sizes: bytes and parameters by hand, and what the reader finds in their configs today."""

import importlib.util
import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import factories
from cases import each
from counted import COUNTED
from dse import quantizers
from dse.cli import main as cli
from dse.core import specfile
from dse.core.errors import InputError, SpecError
from dse.model import engine, kv_layout, ring
from dse.model.point import Point
from dse.report import listing
from dse.specs import catalog, model_file
from dse.specs.device_and_model import ModelSpec, keys_at
from dse.specs.links import LinksSpec
from dse.specs.stack import StackSpec
from dse.specs.workload import Workload
from factories import SHIPPED

CONFIGS = Path(__file__).parents[1] / "golden" / "hf_configs"


class Counted(NamedTuple):
    """What a model's sources print, and what follows by hand."""

    #: billions of parameters, all and active, as published
    parameters: float
    active: float | None
    #: bytes that one token adds over all layers with 16-bit keys and values, windows not yet full
    kv_bytes: float


#: grouped: 2 (key and value) * layers * KV heads * head dimension * 2 B; latent: layers * (512 + 64) * 2 B
BY_HAND = {
    "qwen3-0.6b": Counted(0.6, None, 2 * 28 * 8 * 128 * 2),  # 114,688: head_dim 128, not 1024 / 16 = 64
    "qwen3-1.7b": Counted(1.7, None, 2 * 28 * 8 * 128 * 2),
    "qwen3-8b": Counted(8.2, None, 2 * 36 * 8 * 128 * 2),  # 147,456
    "qwen3-32b": Counted(32.8, None, 2 * 64 * 8 * 128 * 2),  # 262,144
    "qwen3-30b-a3b": Counted(30.5, 3.3, 2 * 48 * 4 * 128 * 2),  # 98,304
    "qwen3-235b-a22b": Counted(235, 22, 2 * 94 * 4 * 128 * 2),  # 192,512
    "qwen3-coder-480b-a35b": Counted(480, 35, 2 * 62 * 8 * 128 * 2),  # 253,952
    "gpt-oss-120b": Counted(116.83, None, 2 * 36 * 8 * 64 * 2),  # 73,728
    "deepseek-v3.2": Counted(671, None, 61 * ((512 + 64) * 2 + 128 + 4)),  # 78,324: an FP8 index key, an FP32 scale
    "kimi-k2": Counted(1040, 32.6, 61 * (512 + 64) * 2),
    "kimi-k2.5": Counted(1040, 32.6, 61 * (512 + 64) * 2),
    "glm-5": Counted(744, None, 78 * ((512 + 64) * 2 + 128 + 4)),  # 100,152
    # 54 layers with a rotary part, 18 without, of which 9 read the latent of layer 35; index keys of 63 layers
    "mistral-large-4": Counted(1050, None, (54 * (512 + 64) + 9 * 512) * 2 + 63 * 132),
    # 11 of 45 layers have attention, without a rotary part; an index key for 16 tokens; 320B less the layer that drafts
    "glm-5.3-flash": Counted(312.8, None, 11 * 512 * 2 + 11 * 132 / 16),
    "minimax-m2.5": Counted(230, None, 2 * 62 * 8 * 128 * 2),  # 253,952
    "mixtral-8x22b": Counted(141, 39, 2 * 56 * 8 * 128 * 2),  # 229,376
    "llama4-scout": Counted(109, 17, 2 * 48 * 8 * 128 * 2),  # 196,608
    "llama4-maverick": Counted(400, 17, 2 * 48 * 8 * 128 * 2),
}
#: models whose cards print no more than their names: what is counted, as a check of changes alone
NO_CARD = (
    *("lfm3-1.7b", "ling-3.0-flash", "qwen3.5-4b", "qwen3.5-9b", "glm-4-9b"),
    *("granite-4.1-3b", "granite-4.1-8b", "granite-4.1-30b", "olmo-hybrid-7b"),
)
#: file of a config whose model ships -> its name; what was counted of the config is counted of the model
SHIPPED_CONFIGS = {
    config: name
    for config in COUNTED
    if (name := config.replace("llama-3.2", "llama3.2")) in catalog.model_files()
    and "[[layers]]" in catalog.model_files()[name].read_text()
    and name not in BY_HAND
}
BY_HAND |= {
    name: Counted(getattr(COUNTED[config][1], "expected", COUNTED[config][1]) / 1e9, None, COUNTED[config][0])
    for config, name in SHIPPED_CONFIGS.items()
}
FP16 = quantizers.parse("fp16")


def point(name: str, **asked) -> Point:
    return factories.point("h200", name, **asked)


def facts(model: ModelSpec) -> dict:
    """All of a model but what a file adds to its config."""
    added = {"name", "title", "source", "numbers", "published_parameters", "checkpoints", "released_source", "wide"}
    return model.model_dump(exclude=added | {"hub"})


def export(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 0


def test_these_are_all_that_ship():
    found = {name for name, path in catalog.model_files().items() if "[[layers]]" in path.read_text()}
    assert found == set(BY_HAND) | set(SHIPPED)


@each("name", BY_HAND)
def test_bytes_of_a_token(name):
    model = catalog.model(name)
    assert kv_layout.build(model, FP16, FP16).bits(1) + model.index_bits == 8 * BY_HAND[name].kv_bytes
    # and as a design has them: a request of 64 tokens, shorter than every window
    first = next(layer for layer in model.layers if layer.key_dim)
    heads = first.n_kv_heads
    devices = math.gcd(8, model.n_q_heads, heads if heads > 8 else 0)
    found = engine.evaluate(point(name, batch=1, input_tokens=63, output_tokens=1, tp=devices, weights_bits=4))
    latent = first.value_dim == 0
    assert found["kv_bytes_per_token"] == (BY_HAND[name].kv_bytes if latent else on_one_of(model, devices))


def on_one_of(model: ModelSpec, devices: int) -> int:
    """Bytes of a token on one of several devices: their share of the heads, copied where there are fewer."""
    stored = [group for group in model.layers if group.stored]
    return sum(group.n_layers * max(group.n_kv_heads // devices, 1) * 4 * group.key_dim for group in stored)


def test_published_parameters_that_the_layers_do_not_have_are_said(tmp_path):
    """7.24e9 counted by hand in test_catalog; 8.16e9 published would be 11 % more."""
    text = catalog.shipped_model_file("mistral-7b").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("published_parameters")]
    path = tmp_path / "own.toml"
    published = '{ value = 8160000000, unit = "parameter", source = "a card", kind = "published" }'
    path.write_text(text.replace(line, f"published_parameters = {published}"))
    counted = catalog.model("mistral-7b").parameters
    said = [line for line in listing.check(str(path)).splitlines() if line.startswith("Warning: ")]
    assert said == [
        f"Warning: published_parameters = 8,160,000,000, but {counted:,} are counted from the layers, 11.3% fewer: "
        "check the shape, and what was published"
    ]
    assert counted == pytest.approx(7.24e9, rel=0.01)


def test_no_shipped_model_is_off_its_published_parameters():
    shipped = [catalog.model(name) for name in catalog.model_files()]
    assert sum(model.published_parameters is not None for model in shipped) > 100
    assert [model.name for model in shipped if model.warnings()] == []


def test_the_largest_image_of_a_tower():
    """Patches of the largest image times the tower's width; of other families it is not known."""
    sizes = {name: catalog.model(name).image_elements for name in ("qwen3.5-9b", "qwen2.5-vl-7b", "gemma-3-12b")}
    assert sizes == {"qwen3.5-9b": 65_536 * 1152, "qwen2.5-vl-7b": 65_536 * 1280, "gemma-3-12b": None}


def test_towers_count_where_what_is_published_has_them():
    gemma = catalog.model("gemma-3-4b")
    whole = gemma.parameters + gemma.tower_parameters
    for published, said in ((gemma.parameters, 0), (whole, 0), (2 * whole, 1), (gemma.parameters // 2, 1)):
        assert len(gemma.model_copy(update={"published_parameters": published}).warnings()) == said


@each("name", BY_HAND)
def test_parameters_are_the_published_ones(name):
    model, hand = catalog.model(name), BY_HAND[name]
    if name in NO_CARD:
        assert model.published_parameters is None
        assert model.parameters == pytest.approx(1e9 * hand.parameters, rel=1e-3)
    else:
        assert model.published_parameters == pytest.approx(1e9 * hand.parameters, rel=1e-3)
    assert model.parameters == pytest.approx(1e9 * hand.parameters, rel=0.02)
    if hand.active:
        assert float(model.active_parameters) == pytest.approx(1e9 * hand.active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "embedding", "active"),
    [
        # reports that leave the table of the input embedding out: gpt-oss Table 1, GLM-5, MiniMax-M2, DeepSeek-V3,
        # and the name of Mistral Large 4
        ("gpt-oss-20b", 201_088 * 2880, 3.61),
        ("gpt-oss-120b", 201_088 * 2880, 5.13),
        ("glm-5", 154_880 * 6144, 40),
        ("minimax-m2.5", 200_064 * 3072, 10),
        ("mistral-large-4", 204_800 * 6144, 52),
        ("deepseek-v3.2", 129_280 * 7168, 37),
    ],
)
def test_active_parameters_without_the_input_embedding(name, embedding, active):
    found = (float(catalog.model(name).active_parameters) - embedding) / 1e9
    assert found == pytest.approx(active, rel=0.05)


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("gpt-oss-20b", [(1, 128), (1, None)] * 12),
        ("gpt-oss-120b", [(1, 128), (1, None)] * 18),
        ("llama4-scout", [(3, 8192), (1, None)] * 12),
        ("llama4-maverick", [(3, 8192), (1, None)] * 12),
        ("mixtral-8x22b", [(56, None)]),
        ("mixtral-8x7b", [(32, None)]),
    ],
)
def test_layers_keep_their_order(name, windows):
    assert [(layer.n_layers, layer.window) for layer in catalog.model(name).layers] == windows


def test_windows_bound_what_a_long_request_holds():
    # 8 KV heads of 64: 2 * 8 * 64 * 2 = 2,048 B a token and layer; 18 layers hold 10,000 tokens, 18 a window of 128
    found = engine.evaluate(point("gpt-oss-120b", batch=1, input_tokens=9_999, output_tokens=1, weights_bits=4))
    assert found["kv_bytes"] == 18 * 2048 * (10_000 + 128)


def test_equal_layers_are_computed_together():
    found = point("gpt-oss-120b").design
    assert found.layers[0][:2] == (18, 128)
    assert len(found.layers) == 2
    # windows 128 and none, the first two layers apart: keys and values
    assert len(found.tensors) == 2 * 4


def test_an_index_is_the_policy_sparse_reading_in_the_model_itself():
    asked = {"batch": 16, "input_tokens": 8000, "output_tokens": 100, "tp": 8, "weights_bits": 8}
    asked["admission"] = "reserve"
    own, policy = point("deepseek-v3.2", **asked), point("deepseek-v3", tokens="sparse", **asked)
    for name in ("kv_bytes", "kv_bytes_per_token", "stored_bits", "read_tokens", "stored_tokens"):
        assert engine.evaluate(own)[name] == engine.evaluate(policy)[name], name
    ideal = [
        engine.evaluate(point(model, model_kind="ideal", tokens=tokens, **asked))["attention_s"]
        for model, tokens in (("deepseek-v3.2", "full"), ("deepseek-v3", "sparse"))
    ]
    assert ideal[0] == ideal[1]
    # what chooses was measured of the model; of a policy it is not counted
    assert engine.evaluate(own)["attention_s"] > engine.evaluate(policy)["attention_s"]
    assert engine.evaluate(own)["read_tokens"] == 2048
    # 16 requests of 8,100 tokens of 78,324 B: the latent is on every device
    assert engine.evaluate(own)["kv_bytes"] == 16 * 8100 * 78_324
    assert "token_policy" in engine.evaluate(own)["assumptions"]
    # fewer by a policy: the smaller holds; sparse reading asked for takes the place of the model's own
    assert engine.evaluate(point("deepseek-v3.2", tokens="window:tokens=1000", **asked))["read_tokens"] == 1000
    assert engine.evaluate(point("deepseek-v3.2", tokens="window:tokens=4000", **asked))["read_tokens"] == 2048
    assert engine.evaluate(point("deepseek-v3.2", tokens="sparse:k=4096", **asked))["read_tokens"] == 4096
    # a prompt within the limit is computed and read in full
    short = {**asked, "input_tokens": 1000}
    assert engine.evaluate(point("deepseek-v3.2", **short))["read_tokens"] == 1100


@pytest.mark.parametrize(
    ("model", "asked", "message"),
    [
        ("deepseek-v4-flash", {"tp": 8, "dcp": 8}, "dcp = 8: the index of .* chooses blocks or compressed tokens"),
        ("deepseek-v3.2", {"kv_cache": False}, "kv-cache = False: deepseek-v3.2 chooses what it reads by an index"),
    ],
)
def test_what_an_index_cannot_do_is_refused(model, asked, message):
    with pytest.raises(InputError, match=message):
        engine.evaluate(point(model, **asked))


def test_a_ring_refuses_an_index():
    plan = kv_layout.build(catalog.model("glm-5"), FP16, FP16)
    with pytest.raises(InputError, match="model = glm-5: its index chooses among all tokens"):
        ring.evaluate(catalog.device("h200"), plan, Workload(), 4)


def packaged(repository: str) -> Path:
    """The config.json of a repository in aiconfigurator-core."""
    spec = importlib.util.find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("aiconfigurator-core is not installed")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model_configs"
    return folder / f"{repository.replace('/', '--')}_config.json"


@each("name", BY_HAND)
def test_file_is_what_the_reader_finds(name):
    model = catalog.model(name)
    in_package = re.match(r"config.json of (\S+) \(as in aiconfigurator", model.source)
    config = packaged(in_package[1]) if in_package else CONFIGS / f"{re.sub('^llama(?=3.2)', 'llama-', name)}.json"
    found = facts(catalog.model(str(config)))
    tower = found.pop("tower_parameters")
    ours = facts(model)
    assert tower in (ours.pop("tower_parameters"), None)  # configs of the package leave Llama 4's out
    assert found == ours


@each(
    ("name", "repository"),
    [
        ("deepseek-v3", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-v3", "nvidia/DeepSeek-V3.1-NVFP4"),
        ("deepseek-v3.2", "nvidia/DeepSeek-V3.2-NVFP4"),
        ("kimi-k2.5", "nvidia/Kimi-K2.5-NVFP4"),
        ("kimi-k2.5", "nvidia/Kimi-K2.6-NVFP4"),
        ("kimi-k2.5", "nvidia/Kimi-K2.7-Code-NVFP4"),
        ("glm-5", "zai-org/GLM-5-FP8"),
        ("glm-5", "zai-org/GLM-5.1"),
        ("glm-5", "nvidia/GLM-5.1-NVFP4"),
        ("minimax-m2.5", "MiniMaxAI/MiniMax-M2.7"),
        ("minimax-m2.5", "nvidia/MiniMax-M2.7-NVFP4"),
        ("qwen3-32b", "Qwen/Qwen3-32B-FP8"),
        ("qwen3-235b-a22b", "nvidia/Qwen3-235B-A22B-NVFP4"),
        ("llama3.1-70b", "nvidia/Llama-3.1-70B-Instruct-FP8"),
    ],
)
def test_other_names_have_the_same_shape(name, repository):
    """What a name leaves out (how weights are stored, dates) and the models of ALSO do not change layers or widths."""
    ours, theirs = catalog.model(name), catalog.model(str(packaged(repository)))
    weights = {"released", "released_source", "hub"}
    assert catalog.model(repository).model_dump(exclude=weights) == ours.model_dump(exclude=weights)
    if theirs.released != "bf16":  # files that say it elsewhere have none
        # shared experts of K2.5 are NVFP4 too, those of K2.6 and K2.7 are not
        stored = "nvfp4-experts" if name == "kimi-k2.5" else theirs.released
        assert catalog.model(repository).released == stored
    for field in ("layers", "parameters", "attention_parameters", "n_q_heads", "hidden_size", "read_limit_tokens"):
        assert getattr(theirs, field) == getattr(ours, field), field


@pytest.mark.parametrize("config", ["llama-3.1-8b", "gpt-oss-20b", "gemma-3-4b", "gemma-3n-e4b", "openelm-270m"])
def test_an_exported_config_reads_back(tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    asked = ["--name", "Mine", "--source", "test data", "--revision", "1a2b"]
    published = ["--published", "7", "--published-source", "x"]
    export(["model", "export", str(CONFIGS / f"{config}.json"), *asked, *published, "--out", "m.toml"])
    model = catalog.model("m.toml")
    assert facts(model) == facts(catalog.model(str(CONFIGS / f"{config}.json")))
    assert (model.name, model.published_parameters, model.source) == ("Mine", 7, "test data, revision 1a2b")
    # a file made from the file is the same file
    export(["model", "export", "m.toml", *asked, "--out", "again.toml"])
    assert facts(catalog.model("again.toml")) == facts(model)


def test_a_shipped_shape_can_be_exported(tmp_path):
    out = tmp_path / "m.toml"
    export(["model", "export", "llama2-70b", "--out", str(out)])
    assert facts(catalog.model(str(out))) == facts(catalog.model("llama2-70b"))


def test_an_export_replaces_a_file_by_force_alone(tmp_path, run):
    out = tmp_path / "m.toml"
    out.write_text("mine")
    code, _, err = run("model", "export", "llama2-7b", "--out", out)
    assert (code, out.read_text()) == (2, "mine")
    assert err.endswith("exists: give another --out, or --force to replace it\n")
    assert run("model", "export", "llama2-7b", "--out", out, "--force")[0] == 0
    assert facts(catalog.model(str(out))) == facts(catalog.model("llama2-7b"))


@each("name", BY_HAND)
def test_numbers_have_unit_and_source(name):
    model = catalog.model(name)
    assert {"hidden_size", "dense_parameters"} <= model.numbers.keys()
    assert ("published_parameters" in model.numbers) is (name not in NO_CARD)
    for number in model.numbers.values():
        assert len(number.source.split()) > 2
    assert model.title
    assert model.name == name


GOOD = """name = "m"
source = "by hand"
hidden_size = 8
vocab_size = 16
n_q_heads = 2
dense_parameters = 100
activation_elements = 32

[[layers]]
n_layers = 2
n_kv_heads = 2
key_dim = 4
value_dim = 4
score_dim = 8
"""


@each(
    ("change", "message"),
    [
        (("hidden_size = 8", "hidden_size = 0"), "m.toml:3: hidden_size = 0: "),
        (("hidden_size = 8", 'hidden_size = "8"'), "m.toml:3: hidden_size = '8': "),
        (("hidden_size = 8\n", ""), "m.toml: hidden_size: is missing: add it"),
        (("key_dim = 4", "key_dim = -4"), "m.toml:12: layers.0.key_dim = -4: "),
        (("key_dim = 4", "keydim = 4"), "m.toml:12: layers.0.keydim: unknown key: did you mean key_dim"),
        (("vocab_size = 16", "vocab_size = 16\nn_active_experts = 2"), "n_active_experts = 2: must be at most n_exp"),
        (("vocab_size = 16", "vocab_size = 16\nattention_parameters = 101"), "must be at most dense_parameters = 100"),
        (("vocab_size = 16", "vocab_size = 16\nrepeat = 6000"), "repeat = 6000: must leave at most 10,000 layers"),
        (("score_dim = 8", "score_dim = 8\nindex_bits = 8"), "layers = 'index_bits': needs read_limit_"),
        (("score_dim = 8", "score_dim = 8\nstored = false"), "layers = '1 runs': the first with heads must have"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(change, message):
    assert catalog.model_from(specfile.parse("m.toml", GOOD)).n_layers == 2
    assert GOOD.replace(*change) != GOOD
    with pytest.raises(SpecError) as caught:
        catalog.model_from(specfile.parse("m.toml", GOOD.replace(*change)))
    assert message in str(caught.value)


def test_text_leaves_defaults_out():
    model = catalog.model_from(specfile.parse("m.toml", GOOD))
    assert "stored" not in model_file.text(model)
    assert facts(catalog.model_from(specfile.parse("again.toml", model_file.text(model)))) == facts(model)


def test_a_misspelled_key_of_an_optional_table_is_told_what_that_table_may_have():
    assert "rounds_in_step" in keys_at(StackSpec, ("host",))
    assert "decode_error" in keys_at(LinksSpec, ("all_reduce",))
    assert keys_at(LinksSpec, ("pair_bandwidth",))[:2] == ["value", "unit"]
