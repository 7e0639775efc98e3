"""The shipped devices and models: every file loads, is sourced, and holds the numbers its sources print.

Models of counted sizes have tests of their own (test_model_file.py).
"""

from pathlib import Path
from typing import NamedTuple

import pytest

import hwspecs
from cases import each
from dse.calibrate import blocks
from dse.core import specfile, toml, units
from dse.core.errors import InputError, SpecError
from dse.specs import catalog, device_file
from dse.specs import device_and_model as specs

FITTED = sorted((Path(hwspecs.__file__).parent / "calibrations").glob("*.toml"))
DEVICE_FILES = sorted((Path(hwspecs.__file__).parent / "devices").glob("*.toml"))
MODEL_FILES = [
    path
    for path in sorted((Path(hwspecs.__file__).parent / "models").glob("*.toml"))
    if "[[layers]]" not in path.read_text()
]
DEVICES = {
    name: specs.load(catalog.shipped_device(path), specs.HardwareSpec) for name, path in catalog.device_files().items()
}
MODELS = {path.stem: specs.load(specfile.read(path), specs.ModelFile) for path in MODEL_FILES}


class Sheet(NamedTuple):
    """What a GPU's data sheet says: GB, TB/s, TFLOP/s, watts, cores, MHz; FLOP of a core in a cycle."""

    capacity: float
    bandwidth: float
    flops: float
    power: float
    cores: int
    mhz: int
    flop_a_cycle: int


GPUS = {
    "A100-80GB": Sheet(80, 2.039, 312, 400, 108, 1410, 2048),
    "2xA100-80GB": Sheet(160, 2.039, 312, 800, 108, 1410, 2048),
    "A100-40GB": Sheet(40, 1.555, 312, 400, 108, 1410, 2048),
    "A800-80GB": Sheet(80, 2.039, 312, 400, 108, 1410, 2048),
    "H100": Sheet(80, 3.35, 989, 700, 132, 1980, 4096),
    "H100-PCIe": Sheet(80, 2.039, 756, 350, 114, 1755, 4096),
    "H200": Sheet(141, 4.8, 989, 700, 132, 1980, 4096),
    "B200": Sheet(180, 7.7, 2250, 1000, 148, 1965, 8192),
    "B300": Sheet(270, 7.7, 2250, 1100, 148, 1980, 8192),
    "GB200": Sheet(186, 8, 2500, 1200, 152, 2056, 8192),
    "GB300": Sheet(279, 8, 2500, 1400, 152, 2070, 8192),
    "L40S": Sheet(48, 0.864, 362.05, 350, 142, 2520, 1024),
    "RTX-PRO-6000": Sheet(96, 1.597, 480, 600, 188, 2493, 1024),
    "RTX-4090": Sheet(24, 1.008, 165.2, 450, 128, 2520, 512),  # GeForce: FP32 accumulation at half the rate
    "RTX-3090": Sheet(24, 0.936, 71, 350, 82, 1695, 512),
    "RTX-A6000": Sheet(48, 0.768, 154.8, 300, 84, 1800, 1024),
}
ACCELERATORS = ["Oaken-HBM", "Oaken-LPDDR", "LPU-HBM", "LPU-LPDDR", "Tender-A100"]


class Shipped(NamedTuple):
    """What a model's sources print, and what follows by hand."""

    #: sum over the released checkpoint; OPT-175B is as its paper prints it
    parameters: int
    #: FP16 bytes that one token adds over all layers, by hand: 2 (key and value) * layers * kv heads * head_dim * 2 B
    kv_bytes: int
    window: int | None = None


#: a row a model
BY_HAND = {
    "opt-125m": Shipped(125_239_296, 36_864),  # 2 * 12 * 768 * 2
    "opt-1.3b": Shipped(1_315_758_080, 196_608),  # 2 * 24 * 2048 * 2
    "opt-6.7b": Shipped(6_658_473_984, 524_288),  # 2 * 32 * 4096 * 2
    "opt-13b": Shipped(12_853_473_280, 819_200),  # 2 * 40 * 5120 * 2
    "opt-30b": Shipped(29_974_540_288, 1_376_256),  # 2 * 48 * 7168 * 2
    "opt-175b": Shipped(175_000_000_000, 4_718_592),  # 2 * 96 * 12288 * 2
    "llama2-7b": Shipped(6_738_415_616, 524_288),  # 2 * 32 * 4096 * 2
    "llama2-13b": Shipped(13_015_864_320, 819_200),  # 2 * 40 * 5120 * 2
    "llama2-70b": Shipped(68_976_648_192, 327_680),  # 2 * 80 * 8 * 128 * 2
    "llama3-8b": Shipped(8_030_261_248, 131_072),  # 2 * 32 * 8 * 128 * 2
    "llama3.1-8b": Shipped(8_030_261_248, 131_072),
    "llama3.1-70b": Shipped(70_553_706_496, 327_680),
    "llama3.1-405b": Shipped(405_853_388_800, 516_096),  # 2 * 126 * 8 * 128 * 2
    "mistral-7b": Shipped(7_241_732_096, 131_072, window=4096),  # Oaken 6.1
    "mixtral-8x7b-oaken": Shipped(46_702_792_704, 131_072, window=4096),  # Oaken 6.1
}


def quantities():
    """(file/field, quantity) of every number in every shipped file."""
    for name, spec in {**DEVICES, **MODELS}.items():
        for field in sorted(spec.model_fields_set):  # the same order in every process
            value = getattr(spec, field)
            if isinstance(value, specs.Quantity):
                yield f"{name}/{field}", value


QUANTITIES = dict(quantities())


def number(spec, field):
    """A number of a spec that must be there."""
    value = getattr(spec, field)
    assert value is not None, f"{spec.name} has no {field}"
    return value


def test_names_are_the_lists():
    known = {name.lower() for name in (*GPUS, *ACCELERATORS)}
    assert known <= set(DEVICES)  # those of 2026 by name are in test_device_names.py
    assert {spec.name for spec in MODELS.values()} == set(BY_HAND)


def test_files_are_named_after_their_spec_and_say_what_they_are():
    for path in (*DEVICE_FILES, *MODEL_FILES):
        spec = {**DEVICES, **MODELS}[path.stem]
        assert path.name == f"{spec.name.lower()}.toml"
        assert spec.title, path
        assert path.read_text().startswith("# "), path


def test_a_device_file_holds_what_a_data_sheet_says():
    """Some 30 lines that one can read; what was fitted lies beside it, a source once a block."""
    for path in DEVICE_FILES:
        sheet = specfile.read(path).data
        assert len(path.read_text().splitlines()) <= 38, path
        assert "stacks" not in sheet, path
        assert sheet.get("links", {}).keys() <= {
            "node_devices",
            "inter_node_bandwidth",
            "pair_bandwidth",
            "host_share",
        }, path
        fitted = catalog.calibration_file(path.stem)
        if fitted.is_file():
            again = specfile.read(fitted).data
            assert again.keys() <= {"energy", "stacks", "links"}
            assert not sheet.keys() & (again.keys() | again.get("energy", {}).keys()) - {"links"}, path
            assert fitted.read_text() == blocks.device_text(blocks.device_data(path.stem), str(fitted)), path
    assert {path.stem for path in FITTED} <= {path.stem for path in DEVICE_FILES}
    assert len(FITTED) == 9


def test_one_file_of_everything_and_sources_beside_each_number_are_read_too(tmp_path):
    """Device files of users: a calibrated device in one file, each number with its source."""
    whole, spread = tmp_path / "whole.toml", tmp_path / "spread.toml"
    whole.write_text(catalog.device_text(catalog.device_files()["b200"]))
    assert catalog.device(str(whole)) == catalog.device("b200")
    numbers = catalog.device("b200").model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    spread.write_text(toml.dumps(numbers))
    assert spread.read_text().count("source = ") > 200
    assert catalog.device(str(spread)) == catalog.device("b200")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('energy_per_bite = "5 pJ/B"', "energy.energy_per_bite: unknown key: did you mean energy_per_byte"),
        ('n_cores = "4 core"', "energy.n_cores: unknown key"),
        ('energy_per_byte = "5 pJ"', "unit must be one of"),
        ("energy_per_byte = true", "must be a number with a unit"),
    ],
)
def test_wrong_blocks_of_fitted_energy_are_one_line(lines, reason):
    head = 'name = "x"\nmemory_capacity = "80 GB"\nmemory_bandwidth = "2 TB/s"\npeak_flops = "1 PFLOP/s"\n'
    text = f'{head}[energy]\nsource = "by hand"\n{lines}\n'
    with pytest.raises(SpecError, match=reason):
        catalog.device_from(specfile.parse("d.toml", text))
    twice = f'idle_power = "5 W"\n{head}[energy]\nsource = "by hand"\nidle_power = "6 W"\n'
    with pytest.raises(SpecError, match=r"energy\.idle_power: is given twice"):
        catalog.device_from(specfile.parse("d.toml", twice))


def test_there_are_numbers_to_check():
    assert len(QUANTITIES) > 8 * len(DEVICES) + 8 * len(MODELS)


def test_numbers_have_a_unit_and_a_source_and_assumed_ones_say_so():
    wrong = [
        where
        for where, number in QUANTITIES.items()
        if number.unit not in units.UNITS
        or len(number.source.split()) <= 1
        or "user's file" in number.source
        or ("assumed" in number.source.lower()) != (number.kind == "assumed")
    ]
    assert wrong == []


def test_lines_are_one_key_each():
    """A number stands on one line, so that an error about it can point there."""
    for path in [*DEVICE_FILES, *MODEL_FILES]:
        document = specfile.read(path)
        spec = {**DEVICES, **MODELS}[path.stem]
        lines = [document.lines[(field,)] for field in spec.model_fields_set & document.data.keys()]
        assert len(set(lines)) == len(lines), path


# Oaken, Table 1: capacity in GB, bandwidth in TB/s, peak FP16 in TFLOP/s
@pytest.mark.parametrize(
    ("name", "capacity", "bandwidth", "flops"),
    [
        ("A100-80GB:memory_bandwidth=2 TB/s", 80e9, 2.0e12, 312e12),
        ("Oaken-HBM", 80e9, 2.0e12, 270e12),
        ("Oaken-LPDDR", 256e9, 1.1e12, 270e12),
        ("LPU-HBM", 80e9, 2.0e12, 270e12),
        ("LPU-LPDDR", 256e9, 1.1e12, 270e12),
        ("Tender-A100", 80e9, 2.0e12, 312e12),
    ],
)
def test_oaken_table_1(name, capacity, bandwidth, flops):
    device = catalog.device(name)
    assert device.memory_capacity.si == capacity
    assert device.memory_bandwidth.si == bandwidth
    assert device.peak_flops.si == flops


# data sheets: capacity in GB, bandwidth in TB/s, dense FP16 in TFLOP/s, W, streaming multiprocessors
@each("name", GPUS)
def test_data_sheets(name):
    device, sheet = catalog.device(name), GPUS[name]
    assert device.memory_capacity.si == sheet.capacity * 10**9
    assert device.memory_bandwidth.si == pytest.approx(sheet.bandwidth * 1e12, rel=1e-15)
    assert device.peak_flops.si == pytest.approx(sheet.flops * 1e12, rel=1e-15)
    assert number(device, "board_power").si == sheet.power
    assert number(device, "n_cores").count == sheet.cores
    assert number(device, "core_clock").si == sheet.mhz * 10**6
    # the clock of products, which peak FLOP/s, cores and FLOP a cycle give: as fast, or (Hopper, Blackwell) slower
    products = device.peak_flops.si / sheet.cores / sheet.flop_a_cycle
    assert 0.92 < products / number(device, "core_clock").si < 1.004


def test_power_is_of_the_chip_not_of_the_supply_beside_it():
    # DGX Spark: a GB10 of 140 W behind a supply of 240 W
    assert catalog.device("dgx-spark").board_power.si == 140


def test_a_new_data_sheet_leaves_measured_times():
    """A100: 0.8137 of 2.0 TB/s was measured of vLLM's products, now 0.7981 of 2.039 TB/s: 1.627 TB/s."""
    device = catalog.device("a100-80gb")
    reached = device.stacks["vllm"].products["bf16"].memory_frac.si * device.memory_bandwidth.si
    assert reached == pytest.approx(1.6274e12, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "of_fp16"),  # dense FP4: four times FP16, but 14 and 15 PFLOPS on Blackwell Ultra
    [("B200", 4), ("B300", 14 / 2.25), ("GB200", 4), ("GB300", 6), ("RTX-PRO-6000", 4)],
)
def test_dense_fp4(name, of_fp16):
    device = catalog.device(name)
    assert number(device, "peak_flops_fp4").si == pytest.approx(of_fp16 * device.peak_flops.si, rel=1e-12)
    assert number(device, "peak_flops_fp8").si == 2 * device.peak_flops.si
    assert catalog.device("H100").peak_flops_fp4 is None


@pytest.mark.parametrize(
    ("name", "fp8", "int8"),  # dense, of the FP16 rate: GeForce halves FP16 and FP8 where they accumulate in FP32
    [("H100-PCIe", 1513, 1513), ("RTX-4090", 330.3, 660.6), ("RTX-3090", None, 284), ("RTX-A6000", None, 309.7)],
)
def test_dense_eight_bits(name, fp8, int8):
    device = catalog.device(name)
    assert (device.peak_flops_fp8.si if device.peak_flops_fp8 else None) == (fp8 and pytest.approx(fp8 * 1e12))
    assert number(device, "peak_ops_int8").si == pytest.approx(int8 * 1e12)
    peak = device.product_peak(8)
    assert peak is not None
    assert peak.si == pytest.approx(int8 * 1e12)


@pytest.mark.parametrize(
    ("name", "of"), [("H100-PCIe", "h100"), ("RTX-4090", "l40s"), ("RTX-3090", "a100-80gb"), ("RTX-A6000", "a100-80gb")]
)
def test_kernels_of_the_nearest_chip(name, of):
    device = catalog.device(name)
    assert device.stacks_of == of
    assert device.stacks == catalog.device(of).stacks


def test_a_pipeline_of_two_doubles_capacity_and_nothing_else():
    one, two = catalog.device("A100-80GB"), catalog.device("2xA100-80GB")
    for field in ("memory_capacity", "board_power", "usd_per_hour", "n_devices"):
        assert getattr(two, field).si == 2 * getattr(one, field).si
    for field in ("memory_bandwidth", "peak_flops", "n_cores", "usable_frac", "kernel_launch", "fused_rate"):
        assert getattr(two, field).si == getattr(one, field).si
    assert two.dequant_path == one.dequant_path


def test_power_of_oaken_is_44_percent_below_the_a100():
    """Oaken 6.2, Area and power: 222.7 W, printed as 44.3 % below 400 W."""
    a100 = number(catalog.device("A100-80GB"), "board_power").si
    for name in ("Oaken-HBM", "Oaken-LPDDR"):
        power = number(catalog.device(name), "board_power")
        assert power.si == 222.7
        assert round(100 * (1 - power.si / a100), 1) == 44.3
    for name in ("LPU-HBM", "LPU-LPDDR"):
        assert number(catalog.device(name), "board_power").kind == "assumed"
    assert catalog.device("Tender-A100").board_power is None


@each("name", GPUS)
def test_gpus(name):
    device = catalog.device(name)
    # docs/explanation/calibration.md: 13.73 elements a cycle and core; peak FLOP/s over FLOP a cycle and core gives the
    # clock
    rate = 13.73 * number(device, "peak_flops").si / GPUS[name].flop_a_cycle
    assert number(device, "fused_rate").si == pytest.approx(rate, rel=6e-3)
    assert device.engine_rate is None
    assert device.kernel_launch.si == pytest.approx(5e-6)
    assert number(device, "usd_per_hour").kind == "assumed"
    assert device.dequant_path == {"default": "fused", "nqkv": "materialised", "oaken": "materialised"}


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerators(name):
    device = catalog.device(name)
    has_engines = name.startswith("Oaken")
    # no rate is published: 4-bit elements as fast as the memory delivers them
    assert number(device, "fused_rate").si == 2 * device.memory_bandwidth.si
    assert device.dequant_path == ({"default": "fused", "oaken": "engine"} if has_engines else {"default": "fused"})
    assert (device.engine_rate is not None) == has_engines
    if has_engines:
        # one chip, whose memory differs: engines of 128 cores at 1 GHz, 453 elements a cycle and core
        assert (number(device, "engine_rate").si, number(device, "quantize_rate").si) == (58e12, 0.1e12)
        assert (device.token_cores.low, device.token_cores.high) == (128, 256)
    assert device.usd_per_hour is None
    assert device.kernel_launch.si == 0


@each("name", [*GPUS, *ACCELERATORS])
def test_whole_memory_is_counted_and_the_file_says_so(name):
    spec = DEVICES[name.lower()]
    assert {"usable_frac", "runtime_overhead"} <= spec.model_fields_set
    assert spec.usable_frac.si == 1.0
    assert spec.runtime_overhead.si == 0


@each("name", BY_HAND)
def test_parameters_are_the_published_ones(name):
    model = catalog.model(name)
    assert model.published_parameters == BY_HAND[name].parameters
    if name == "opt-175b":  # its paper prints 175B; no exact count is published
        assert model.parameters == pytest.approx(model.published_parameters, rel=5e-3)
    else:
        assert model.parameters == model.published_parameters


@each("name", BY_HAND)
def test_kv_bytes_per_token(name):
    n_bytes = sum(
        layer.n_layers * layer.n_kv_heads * (layer.key_dim + layer.value_dim) * 2
        for layer in catalog.model(name).layers
    )
    assert n_bytes == BY_HAND[name].kv_bytes


@each("name", BY_HAND)
def test_windows_and_families(name):
    spec = MODELS[name]
    assert (spec.window.count if spec.window else None) == BY_HAND[name].window
    is_opt = name.startswith("opt-")
    assert (spec.ffn, spec.norm) == (("plain", "layernorm") if is_opt else ("gated", "rmsnorm"))
    assert spec.biases == spec.tied_embeddings == (spec.learned_positions is not None) == is_opt
    assert spec.n_q_heads.count * spec.head_dim.count == spec.hidden_size.count


def test_mixtral_routes_two_of_eight():
    """46.7 G parameters, of which a token uses 12.9 G (Mixtral, arXiv:2401.04088, section 3)."""
    model = catalog.model("mixtral-8x7b-oaken")
    assert (model.n_active_experts, model.n_experts) == (2, 8)
    assert float(model.active_parameters) == pytest.approx(12.9e9, rel=5e-3)


def test_numbers_of_a_device_change_on_the_spot():
    device = catalog.device("A100-80GB:usable_frac=90 %,memory_bandwidth=3 TB/s")
    assert (number(device, "usable_frac").si, number(device, "memory_bandwidth").si) == (0.9, 3e12)
    assert number(device, "memory_bandwidth").kind == "assumed"
    assert device.name == "A100-80GB+usable_frac90+memory_bandwidth3TBs"
    assert device.stacks == catalog.device("a100-80gb").stacks
    assert catalog.device("a100-80gb").usable_frac.si == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a100-80gb:usable_frc=0.9", "did you mean usable_frac"),
        ("a100-80gb:usable_frac=9", "must be 0.001 to 1"),
        ("a100-80gb:usable_frac", "must be FIELD=VALUE"),
        ("a100-80gb:usable_frac=", "must be FIELD=VALUE"),
        ("a11:usable_frac=0.9", "unknown device 'a11'"),
        ("a100-80gb:", "unknown device"),
    ],
)
def test_wrong_changes_are_one_line(text, message):
    with pytest.raises((InputError, SpecError)) as caught:
        catalog.device(text)
    assert message in str(caught.value)
    assert len(caught.value.lines()) == 1


def test_energies_that_files_say_to_assume_by_rule_are_those_of_the_rule():
    """The files print three digits; `dse device add` computes by the same words."""
    seen = set()
    for name in catalog.device_files():
        device = catalog.device(name)
        if device.idle_power and device.idle_power.source.endswith(device_file._IDLE_RULE):
            assert device.idle_power.si == pytest.approx(0.15 * device.board_power.si, rel=3e-3), name
            seen.add("idle")
        if device.energy_per_flop and device.energy_per_flop.source.endswith(device_file._FLOP_RULE):
            drawn_w = device.idle_power.si + device.energy_per_byte.si * device.memory_bandwidth.si
            drawn_w += device.energy_per_flop.si * device.peak_flops.si
            assert drawn_w == pytest.approx(device.board_power.si, rel=3e-3), name
            seen.add("operations")
    assert seen == {"idle", "operations"}
