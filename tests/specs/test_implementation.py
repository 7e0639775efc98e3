"""Files of implementations: what they may say, which one runs where, numbers at both ends and given on the spot."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from dse import quantizers
from dse.cli import main as cli
from dse.core import specfile, units
from dse.core.errors import InputError, SpecError
from dse.model.engine import evaluate
from dse.model.point import Point
from dse.quantizers import FAMILIES
from dse.specs import catalog
from dse.specs.device_and_model import load
from dse.specs.implementation import BOUNDS, ENDS, GENERIC, Implementation
from dse.specs.workload import Workload
from factories import assert_one_line, build

A100, H100, OAKEN = (catalog.device(name) for name in ("a100-80gb", "h100", "oaken-hbm"))
ALL = catalog.implementations()


FILE = """
name = "mine"
title = "Mine"
methods = ["kivi"]
release = "1"
arithmetic = "16 bits"
new_token = "one kernel"
source = "test"

[elements_per_cycle]
value = 8.0
low = 4.0
high = 16.0
unit = "element/cycle"
source = "test"
kind = "measured"
"""


def read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load(specfile.read(path), Implementation)


def named(name, method):
    return catalog.implementations_of(method)[name]


@each("one", ALL, ids=lambda one: one.name)
def test_shipped_files_name_what_is_known_and_say_where_numbers_come_from(one):
    assert set(one.methods) <= FAMILIES.keys()
    assert one.source
    assert one.release
    for name, number in one.numbers().items():
        assert 0 < number.low <= number.value <= number.high, name
        assert number.kind in ("measured", "assumed"), name
        assert ("% on rows left out" in number.source) == (number.kind == "measured"), name
        assert number.source.startswith("assumed") == (number.kind == "assumed"), name
    assumed = any(number.kind == "assumed" for number in one.numbers().values())
    assert all(one.is_assumed(method) == assumed for method in one.fitted_to or one.methods)
    assert all(one.is_assumed(method) for method in one.methods if one.fitted_to and method not in one.fitted_to)


def test_no_method_has_two_implementations_of_one_name_or_two_first_ones_on_a_device():
    pairs = [(one.name, method) for one in ALL for method in one.methods]
    assert len(pairs) == len(set(pairs))
    for device in (catalog.device(name) for name in catalog.device_files()):
        for method in FAMILIES:
            known = catalog.implementations_of(method).values()
            ranks = [(one.stack, one.rank) for one in known if one.runs_on(device.architecture)]
            assert len(ranks) == len(set(ranks)), (device.name, method)


def test_what_was_fitted_is_within_what_the_fits_print():
    """QServe on an L40S: 10.35 elements a cycle and core for each query head; ranges of leaving out a model."""
    qserve = named("omniserve", "qserve")
    assert (qserve.unpacked_per, qserve.elements_per_cycle.value) == ("query_head", 10.35)
    assert (qserve.elements_per_cycle.low, qserve.elements_per_cycle.high) == (9.345, 11.47)


def test_ends_by_hand():
    """BitDecoding: 9.696 to 27.79 elements a cycle, a start of 6.155 to 9.89 us; fewer elements and longer starts are
    slow."""
    slow, fast = (named("bitdecoding", "kivi").at(end) for end in ENDS)
    assert (slow.elements_per_cycle.value, slow.launch.value) == (9.696, 9.89)
    assert (fast.elements_per_cycle.value, fast.launch.value) == (27.79, 6.155)
    assert (slow.name, fast.name) == ("bitdecoding:slowest", "bitdecoding:fastest")
    assert slow.launch.si == pytest.approx(9.89e-6)


@each("one", ALL, ids=lambda one: one.name)
def test_every_number_is_at_one_of_its_ends(one):
    for end in ENDS:
        for name, number in one.at(end).numbers().items():
            own = one.numbers()[name]
            assert number.value == (own.low if (end == "slowest") != (name in ("launch", "sinks")) else own.high)


# which one runs


@each(
    ("device", "method", "stack", "name"),
    [
        ("h100", "fp8", "vllm", "vllm"),
        ("h100", "fp8", "sglang", "sglang"),
        ("h100", "fp8", "trtllm", "trtllm"),
        ("a100-80gb", "fp8", "vllm", "vllm-16bit"),  # no FP8 arithmetic
        ("a100-80gb", "fp8", None, "vllm-16bit"),
        ("h100", "qserve", "vllm", "omniserve"),
        ("b200", "qserve", "vllm", GENERIC),  # OmniServe and TurboMind have no kernels for Blackwell
        ("h100", "kivi", None, "kivi-released"),
        ("h100", "tender", None, GENERIC),
        ("h100", "oaken", None, "oaken-artifact"),
        ("oaken-hbm", "oaken", None, "engine"),
        ("h100", "turboquant_4bit_nc", "vllm", "vllm-0.20"),
    ],
)
def test_which_one_runs_by_default(device, method, stack, name):
    assert catalog.implementation(catalog.device(device), method, stack, "").name == name


def test_what_is_no_gpu_runs_as_its_file_says():
    assert catalog.implementation(OAKEN, "qserve", None, "") is None
    assert evaluate(Point(OAKEN, build("llama2-7b", "qserve"), Workload()))["implementation"] is None
    assert catalog.implementation(OAKEN, "kivi", None, "").name == "kivi-released"  # PyTorch, written for no GPU


def test_a_device_without_an_architecture_is_taken_for_a_gpu_of_no_known_kind():
    unknown = A100.model_copy(update={"architecture": None})
    assert catalog.implementation(unknown, "kivi", None, "").name == "kivi-released"  # any GPU
    assert catalog.implementation(unknown, "qserve", None, "").name == GENERIC  # sm_80 and more


def test_names_are_found_in_any_case_and_by_method():
    assert catalog.implementation(A100, "kivi", None, "BitDecoding").name == "bitdecoding"
    spec = quantizers.parse("qserve@OmniServe")
    assert (spec.name, spec.implementation, spec.method) == ("qserve@omniserve", "omniserve", "qserve")
    assert quantizers.parse("kivi:bits=4,group=128@bitdecoding").name == "kivi:bits=4,group=128@bitdecoding"
    assert quantizers.parse("fp8_e5m2@vllm").implementation == "vllm"


def test_a_device_names_its_default():
    own = A100.model_copy(update={"implementations": {"qserve": "turbomind"}})
    assert catalog.implementation(own, "qserve", "vllm", "").name == "turbomind"
    assert catalog.implementation(own, "qserve", "vllm", ":slowest").name == "turbomind:slowest"
    assert catalog.implementation(own, "qserve", "vllm", "omniserve").name == "omniserve"
    assert catalog.implementation(own, "kivi", "vllm", "").name == "kivi-released"
    wrong = A100.model_copy(update={"implementations": {"qserve": "tubromind"}})
    with pytest.raises(InputError, match="implementation = 'tubromind': qserve has omniserve, turbomind"):
        catalog.implementation(wrong, "qserve", "vllm", "")


def test_the_generic_one_runs_anything_where_asked():
    assert catalog.implementation(A100, "qserve", None, GENERIC).name == GENERIC
    assert catalog.implementation(A100, "qserve", None, "generic:slowest").elements_per_cycle.value == 1.0


# bad names and numbers: one line


@each(
    ("asked", "message"),
    [
        ("kivi-released", "implementation = 'kivi-released': kivi-released runs kivi; qserve has omniserve, turbomind"),
        (
            "vllm",
            "vllm runs fp8, fp8_ds_mla, nvfp4_ds_mla, int8_per_token_head, fp8_per_token_head, "
            "int4_per_token_head, nvfp4, nvfp4_4over6; qserve has",
        ),
        ("omniserv", "implementation = 'omniserv': qserve has omniserve, turbomind"),
        ("omniserve:foo=1", "implementation = 'omniserve:foo=1': omniserve has elements_per_cycle, or slowest"),
        ("omniserve:launch=3", "omniserve has elements_per_cycle, or slowest, fastest"),
        ("omniserve:slow", "omniserve has elements_per_cycle, or slowest, fastest"),
        ("omniserve:slowest,elements_per_cycle=3", "omniserve has elements_per_cycle, or slowest, fastest"),
        ("omniserve:elements_per_cycle=0", "elements_per_cycle = '0': must be 0.001 to 10000 element/cycle"),
        ("omniserve:elements_per_cycle=-3", "elements_per_cycle = '-3': must be 0.001 to 10000 element/cycle"),
        ("omniserve:elements_per_cycle=nan", "elements_per_cycle = 'nan': must be 0.001"),
        ("omniserve:elements_per_cycle=inf", "elements_per_cycle = 'inf': must be 0.001"),
        ("omniserve:elements_per_cycle=1e400", "elements_per_cycle = '1e400': must be 0.001"),
        ("omniserve:elements_per_cycle=", "elements_per_cycle = '': must be a number, such as 8"),
        ("omniserve:elements_per_cycle", "elements_per_cycle = '': must be a number, such as 8"),
        ("omniserve:elements_per_cycle=many", "elements_per_cycle = 'many': must be a number, such as 8"),
        ("omniserve:elements_per_cycle=1,elements_per_cycle=2", "elements_per_cycle is given twice"),
    ],
)
def test_bad_names_and_numbers(asked, message):
    with pytest.raises(InputError, match="implementation") as told:
        catalog.implementation(A100, "qserve", "vllm", asked)
    assert message in str(told.value)
    assert len(told.value.lines()) == 1


def test_of_turboquant_one_type_alone_was_measured():
    """The table of vLLM's pull request 53060 has 4bit_nc (evidence.csv: TurboQuant 4 bit)."""
    for types, words in (("4bit_nc", 0), ("3bit_nc", 1), ("k8v4", 1)):
        found = evaluate(Point(A100, build("llama3-8b", f"turboquant:{types}"), Workload(batch=4)))
        assert ("implementation" in found["assumptions"]) == bool(words), types


def test_numbers_on_the_spot_are_in_the_units_of_the_file_and_in_bounds():
    asked = "bitdecoding:launch=20,elements_per_cycle=3"
    found = catalog.implementation(A100, "kivi", None, asked)
    assert found.launch.si == pytest.approx(20e-6)
    assert found.elements_per_cycle.value == found.elements_per_cycle.low == found.elements_per_cycle.high == 3
    assert found.name == asked
    assert found.is_assumed("kivi")
    with pytest.raises(InputError, match=r"launch = '2e6': must be 0.001 to 1e\+06 us"):
        catalog.implementation(A100, "kivi", None, "bitdecoding:launch=2e6")
    with pytest.raises(KeyError):
        found.with_number("memory_frac", 0.5)


@given(st.sampled_from(ALL), st.floats(allow_nan=True, allow_infinity=True), st.data())
def test_a_number_is_taken_or_refused_never_out_of_bounds(one, value, data):
    if not one.numbers():
        return
    name = data.draw(st.sampled_from(sorted(one.numbers())))
    _, low, high = BOUNDS[name]
    if low <= units.to_base(value, one.numbers()[name].unit) <= high:
        assert low <= one.with_number(name, value).numbers()[name].si <= high
    else:
        with pytest.raises(ValueError, match="must be"):
            one.with_number(name, value)


@given(st.text(max_size=30))
def test_no_text_is_a_traceback(text):
    for make in (
        lambda: catalog.implementation(A100, "qserve", "vllm", text),
        lambda: quantizers.parse("qserve@" + text),
    ):
        with contextlib.suppress(InputError):
            make()


POINT = ("point", "--device", "a100-80gb", "--model", "llama3-8b")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--quantizer", "qserve@"), ["quantizer 'qserve@': names no implementation behind @"]),
        (("--quantizer", "qserve@kivi-released"), ["kivi-released runs kivi"]),
        (("--quantizer", "fp16@omniserve"), ["omniserve runs qserve; fp16 has transformers-cache"]),
        (("--implementation", "omniserv"), ["implementation = 'omniserv': is not known: did you mean omniserve"]),
        (("--quantizer", "qserve", "--implementation", "omniserve:foo=1"), ["omniserve has elements_per_cycle"]),
        (("--quantizer", "qserve", "--implementation", "omniserve:elements_per_cycle=0"), ["must be 0.001 to"]),
        (("--quantizer", "fp8@vllm"), ["implementation = 'vllm': has kernels for sm_89", "not for A100-80GB (sm_80)"]),
        (
            ("--quantizer", "tender", "--strict-kernels"),
            ["strict-kernels: no kernel of tender is known for A100-80GB (sm_80): tender runs on tender"],
        ),
    ],
)
def test_bad_options_are_one_line(arguments, parts, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*POINT, *arguments])
    assert_one_line((stop.value.code, *capsys.readouterr()), 2, *parts)


# files


def test_a_file_as_it_should_be(tmp_path):
    found = read(tmp_path, FILE)
    assert found.numbers().keys() == {"elements_per_cycle"}
    assert (found.unpacked_per, found.path, found.rank) == ("kv_head", "fused", 0)
    assert found.rate_text() == "elements_per_cycle 8 element/cycle (4 to 16, measured)"


@each(
    ("old", "new", "message"),
    [
        ("value = 8.0", "value = 0.0", "mine.toml:10: elements_per_cycle = 0.0 element/cycle: value = 0: must lie"),
        ("value = 8.0", "value = 2.0", "value = 2: must lie between low = 4 and high = 16"),
        ("value = 8.0", "value = 17.0", "value = 17: must lie between low = 4 and high = 16"),
        ("low = 4.0", "low = -4.0", "must be above 0, with the value between them"),
        ("low = 4.0\nhigh = 16.0\n", "", "elements_per_cycle.low"),
        ("high = 16.0\n", "", "elements_per_cycle.high"),
        ("low = 4.0", "lo = 4.0", "did you mean low"),
        ("value = 8.0", "value = nan", "elements_per_cycle.value"),
        ("value = 8.0", 'value = "eight"', "elements_per_cycle.value"),
        ('unit = "element/cycle"', 'unit = "us"', "unit must be one of element/cycle, not 'us'"),
        ('kind = "measured"', 'kind = "guessed"', "elements_per_cycle.kind"),
        ('release = "1"', 'release = "1"\nsped = 3', "sped"),
        ('methods = ["kivi"]', 'methods = ["kvi"]', "kvi"),
        ('methods = ["kivi"]', "", "methods = '()': must name a quantizer or more"),
        ('release = "1"', 'release = "1"\nunpacked_per = "layer"', "unpacked_per"),
        ('release = "1"', 'release = "1"\npath = "materialised"', "only fused kernels unpack on the cores"),
        ('release = "1"', 'release = "1"\narchitectures = ["SM 80"]', "architectures"),
        ('source = "test"\n\n', 'source = "test"\n\n[starts]\nread = [1, -1]\n\n', "starts.read"),
        ('source = "test"\n\n', 'source = "test"\n\n[starts]\nreads = [1, 1]\n\n', "did you mean read"),
        ('name = "mine"', 'name = "mi ne"', "name"),
    ],
)
def test_broken_files_say_line_and_field(tmp_path, old, new, message):
    assert old in FILE
    with pytest.raises(SpecError) as told:
        read(tmp_path, FILE.replace(old, new, 1))
    lines = told.value.lines()
    assert any(message in line for line in lines), lines
    assert all("mine.toml:" in line for line in lines)


# lists


def test_list_and_show(capsys):
    for arguments, parts in (
        (["list", "implementations"], ["omniserve", "qserve", "10.35", "query_head", "generic"]),
        (["show", "omniserve"], ["02b2925", "10.35", "9.345 to 11.47", "README", "query_head"]),
        (["show", "vllm-0.20"], ["cores_per_head", "1.633 (0.5608 to 4.756)", "turboquant_4bit_nc"]),
        (["show", "h100"], ["implementation.qserve", "omniserve", "implementation.fp8"]),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert not stop.value.code
        out = capsys.readouterr().out
        assert all(part in out for part in parts), arguments
