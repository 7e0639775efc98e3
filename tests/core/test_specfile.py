"""The loader of users' files: any bytes give a spec or an error of one line per problem, and lines are right."""

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.core import specfile
from dse.core.errors import DseError, InputError
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


@pytest.mark.parametrize("name", [*catalog.device_files(), *catalog.model_files()])
def test_shipped_files_survive_windows_line_ends_and_a_byte_order_mark(tmp_path, name):
    source = {**catalog.device_files(), **catalog.model_files()}[name]
    path = tmp_path / f"{name}.toml"
    path.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n"))
    assert load(path) == load(source)


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
        "d", {"name": "x", "memory_capacity": text, "memory_bandwidth": "1 TB/s", "peak_flops": "1 TFLOP/s"}, {}
    )
    assert specs.load(document, specs.HardwareSpec).capacity_bytes == value


@pytest.mark.parametrize(
    "text", ["80GBx", "GB", "80 80 GB", "0x50 GB", "٨٠ GB", "1,5 TB", "80 GB/s", "80 W", "", "nan GB"]
)
def test_not_a_size(text):
    document = specfile.Document(
        "d", {"name": "x", "memory_capacity": text, "memory_bandwidth": "1 TB/s", "peak_flops": "1 TFLOP/s"}, {}
    )
    with pytest.raises(InputError):
        specs.load(document, specs.HardwareSpec)


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
