"""The loader of users' files: any bytes give a spec or an error of one line per problem, and lines are right."""

import json
import random
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from dse.core import specfile
from dse.core.errors import DseError, InputError
from dse.measure.dumps import safetensors
from dse.specs import catalog
from dse.specs import device_and_model as specs

SEEDS = [path.read_bytes() for path in (*catalog.device_files().values(), *catalog.model_files().values())]
SEEDS.append(b'{"name": "x", "memory_capacity": {"value": 80, "unit": "GB", "source": "s", "kind": "assumed"}}')
TOKENS = [
    b"nan",
    b"inf",
    b"-1",
    b"0",
    b"1e999",
    b"true",
    b'"80 GB"',
    b"[",
    b"{",
    b"}",
    b"=",
    b"\n",
    b"'",
    b'"""',
    b"\\u0000",
    b"999999999999999999999",
    b'"B/s"',
    b"[[a]]",
    b"value",
    b"name",
    b"\xff",
    b"\x00",
    b"# x",
    b".",
    b",",
]


def load(path):
    document = specfile.read(path)
    if catalog.looks_like_device(document.data):
        return catalog.device_from(document)
    return catalog.model_from(document)


def assert_loads_or_says_why(path, content):
    path.write_bytes(content)
    try:
        load(path)
    except DseError as error:
        lines = error.lines()
        assert lines
        assert all(len(line) <= 300 and line.isprintable() for line in lines)
        assert all(line.startswith(str(path)) for line in lines), lines


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "spec.toml"


@given(st.randoms(use_true_random=False), st.sampled_from(SEEDS))
def test_mutated_files(path, rng, seed):
    content = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content))
        stop = start + rng.randint(0, 12)
        content[start:stop] = rng.choice([b"", rng.choice(TOKENS), bytes([rng.randrange(256)])])
    assert_loads_or_says_why(path, bytes(content))


@given(st.binary(max_size=400) | st.text(string.printable, max_size=400).map(str.encode))
def test_any_bytes(path, content):
    assert_loads_or_says_why(path, content)


def test_lines_of_toml_keys(tmp_path):
    text = '# one\na = 1\n"b c" = "x = 2\\n"\n\n[t]\nd = [\n  1,\n  2,\n]\ne.f = 3\n'
    text += '[[l]]\ng = 1\n[[l]]\ng = """\nh = 1\n"""\ni = 2\n'
    path = tmp_path / "x.toml"
    path.write_text(text)
    found = specfile.read(path).lines
    expected = {
        ("a",): 2,
        ("b c",): 3,
        ("t",): 5,
        ("t", "d"): 6,
        ("t", "e"): 10,
        ("t", "e", "f"): 10,
        ("l", 0): 11,
        ("l", 0, "g"): 12,
        ("l", 1): 13,
        ("l", 1, "g"): 14,
        ("l", 1, "i"): 17,
    }
    assert found == expected


def test_lines_of_json_keys(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{\n"a": {"b": [1, {"c": 2,\n"d": "x: {"}]},\n\n"e": "\\"q\\": 1"\n}')
    found = specfile.read(path).lines
    assert found == {("a",): 2, ("a", "b"): 2, ("a", "b", 1, "c"): 2, ("a", "b", 1, "d"): 3, ("e",): 5}


def test_shipped_files_survive_windows_line_ends_and_a_byte_order_mark(path):
    changed = []
    for source in (*catalog.device_files().values(), *catalog.model_files().values()):
        path.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n"))
        if load(path) != load(source):
            changed.append(source.name)
    assert changed == []


def test_lines_are_counted_only_for_a_message(path):
    path.write_text('name = "x"\nn_layers = 3\n')
    document = specfile.read(path)
    assert "lines" not in vars(document)
    assert document.where(("n_layers",)) == f"{path}:2"
    assert "lines" in vars(document)


DEVICE = 'name = "x"\nmemory_capacity = "80 GB"\nmemory_bandwidth = "2 TB/s"\npeak_flops = "1 PFLOP/s"\n'


def hostile(n):
    """Texts of some n characters on which a careless pattern takes time that grows with their square."""
    return {
        "an unclosed string of escaped quotes": '\\"' * (n // 2),
        "the same in JSON": "{" + '\\"' * (n // 2),
        "the same in a string of many lines": '"""' + '\\"' * (n // 2),
        "unclosed strings of one quote": "'a\n" * (n // 3),
        "quotes of three in comments": '# don\'t """\n' * (n // 14),
        "a blank key given twice": f'"{" " * (n // 2)}" = 1\n"{" " * (n // 2)}" = 2\n',
        "a number of many digits and two units": f'{DEVICE}board_power = "{"1" * n} x y"\n',
        "a key that names attention again and again": json.dumps({"model_type": "llama", "attn" * (n // 4): 1}),
    }


def seconds(path, text):
    path.write_text(text)
    taken = []
    for _ in range(3):
        start = time.process_time()
        with pytest.raises(DseError):
            load(path)
        taken.append(time.process_time() - start)
    return min(taken)


def test_time_grows_with_the_size_of_a_file_not_with_its_square(path):
    small, large = hostile(20_000), hostile(160_000)
    grown = {name: seconds(path, large[name]) / seconds(path, small[name]) for name in small}
    assert {name: ratio for name, ratio in grown.items() if ratio > 24} == {}


def test_many_problems_are_counted_not_listed(path):
    path.write_text(DEVICE + "".join(f"key_{i} = 1\n" for i in range(5000)))
    with pytest.raises(DseError) as caught:
        load(path)
    assert len(caught.value.lines()) == 101
    assert caught.value.lines()[0].startswith(f"{path}:5: key_0: unknown key")
    assert caught.value.lines()[-1] == f"{path}: 4,900 more problems: mend these first"
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    path.write_text(json.dumps(config | {f"moe_{i}": 1 for i in range(500)}))
    with pytest.raises(DseError) as caught:
        load(path)
    assert len(caught.value.lines()) == 101


def test_a_file_of_too_many_keys_is_refused_before_it_is_read(path):
    path = path.with_suffix(".json")
    path.write_text(json.dumps({f"k{i}": 1 for i in range(specfile.MAX_KEYS + 1)}))
    with pytest.raises(InputError, match="has 100,001 keys: a spec file has at most 100,000"):
        load(path)


def test_same_device_from_toml_and_json(tmp_path):
    toml, as_json = tmp_path / "d.toml", tmp_path / "d.json"
    toml.write_text('name = "x"\nmemory_capacity = "80 GB"\nmemory_bandwidth = "2 TB/s"\npeak_flops = "1 PFLOP/s"\n')
    as_json.write_text(
        '{"peak_flops": "1 PFLOP/s", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB", "name": "x"}'
    )
    assert load(toml) == load(as_json)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80 GB", 80e9),
        ("80 GiB", 80 * 2**30),
        ("1.5 TB", 1.5e12),
        ("2_000 MB", 2e9),
        (" 80 GB ", 80e9),
        ("8e10 B", 8e10),
    ],
)
def test_short_numbers(text, value):
    document = specfile.Document(
        "d", {"name": "x", "memory_capacity": text, "memory_bandwidth": "1 TB/s", "peak_flops": "1 TFLOP/s"}
    )
    assert specs.load(document, specs.HardwareSpec).capacity_bytes == value


@each("text", ["80GBx", "GB", "80 80 GB", "0x50 GB", "٨٠ GB", "1,5 TB", "80 GB/s", "80 W", "", "nan GB"])
def test_not_a_size(text):
    document = specfile.Document(
        "d", {"name": "x", "memory_capacity": text, "memory_bandwidth": "1 TB/s", "peak_flops": "1 TFLOP/s"}
    )
    with pytest.raises(InputError):
        specs.load(document, specs.HardwareSpec)


@pytest.mark.slow
def test_a_longer_fuzz_of_the_loader_with_a_fixed_seed(path):
    rng = random.Random(11)
    for _ in range(2000):
        content = bytearray(rng.choice(SEEDS))
        for _ in range(rng.randint(1, 6)):
            start = rng.randrange(max(len(content), 1))
            content[start : start + rng.randint(0, 40)] = rng.choice(TOKENS) * rng.choice((1, 1, 1, 3, 50))
        assert_loads_or_says_why(path, bytes(content))


@pytest.mark.parametrize(("n_parts", "reads"), [(16, True), (17, False)])
def test_a_dotted_key_has_at_most_sixteen_parts(path, n_parts, reads):
    path.write_text(".".join(["a"] * n_parts) + " = 1\n")
    if reads:
        assert specfile.read(path).data["a"]
    else:
        with pytest.raises(InputError, match="a dotted key of more than 16 parts"):
            specfile.read(path)


def test_a_header_of_tensors_whose_string_never_ends_is_refused_at_once():
    with pytest.raises(ValueError, match="Unterminated string"):  # a quadratic scan takes hours here
        safetensors.parse_json('{"' + '\\"' * 1_000_000)
