"""Tables of published measurements: what a row means, and every broken cell a line or a reason, never a traceback."""

import csv
import random

import pytest

from cases import each
from dse.calibrate import evidence
from dse.core import files
from dse.core.errors import DseError, InputError
from dse.model.engine import evaluate
from dse.validate import gains
from factories import build

NAMES = (
    "id",
    "device",
    "n_devices",
    "model",
    "weights",
    "activations",
    "kv",
    "stack",
    "batch",
    "input_tokens",
    "output_tokens",
    "quantity",
    "value",
    "unit",
    "group",
    "is_base",
)
HEAD = ",".join(NAMES)
BASE = (
    "r1,A100-80GB,1,Llama-2-7B,FP16,FP16,FP16,vLLM 0.7.3,16,1024,512,"
    '"output throughput, prompt included",700,token/s,g,1'
)
PACKED = (
    "r2,A100-80GB,1,Llama-2-7B,FP16,FP16,INT4 per head,QServe,16,1024,512,"
    '"output throughput, prompt included",900,token/s,g,0'
)


def table(tmp_path, *rows, head=HEAD):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


def changed(row, **cells):
    """A row with other cells."""
    found = {**dict(zip(NAMES, next(csv.reader([row])), strict=True)), **cells}
    return ",".join('"' + str(found[name]).replace('"', '""') + '"' for name in NAMES)


def test_a_row_by_hand(tmp_path):
    base, packed = evidence.read(table(tmp_path, BASE, PACKED))
    assert (base.id, base.group, base.is_base, base.value, base.kv) == ("r1", "g", True, 700, "fp16")
    assert (base.work.batch, base.work.input_tokens, base.work.output_tokens) == (16, 1024, 512)
    assert (base.work.stack, base.device.name, base.model.name) == ("vllm@0.7.3", "A100-80GB", "llama2-7b")
    assert (base.work.model_kind, base.work.admission) == ("calibrated", "reserve")
    assert (packed.kv, packed.is_base) == ("qserve@omniserve", False)
    assert evaluate(packed.point())["implementation"] == "omniserve"
    # what is predicted is what a point says
    assert evidence.predicted(base) == pytest.approx(evaluate(base.point())["throughput_tokens_per_s"])


def test_units_and_quantities_by_hand(tmp_path):
    step = changed(BASE, id="s", quantity="time per output token", unit="ms", value=20)
    (row,) = evidence.read(table(tmp_path, step))
    assert evidence.predicted(row) == pytest.approx(1e3 * evaluate(row.point())["decode_step_s"])
    one = changed(
        BASE,
        id="k",
        model="attention 32 query, 8 KV heads of 128",
        quantity="decode attention of one layer",
        unit="us",
        value=50,
        stack="FlashAttention 2",
        output_tokens="",
    )
    (row,) = evidence.read(table(tmp_path, one))
    assert (row.model.n_q_heads, row.model.layers[0].n_kv_heads, row.model.n_layers) == (32, 8, 1)
    results = evaluate(row.point(output_tokens=1, memory="paper"))
    assert evidence.predicted(row) == pytest.approx(1e6 * (results["attention_s"] + results["dequantize_s"]))


def test_a_matrix_product_by_hand(tmp_path):
    """m 16, n 4096, k 8192 in 16 bits on an A100: 2 m n k operations, 2 (m k + m n + n k) bytes."""
    cells = {"model": "matrix product, N 4096, K 8192", "quantity": "time of one product", "unit": "us", "value": 50}
    (row,) = evidence.read(table(tmp_path, changed(BASE, **cells)))
    reach = row.point(batch=1).design.stack
    n_bytes = 2 * (16 * 8192 + 16 * 4096 + 4096 * 8192)
    memory, compute = (
        n_bytes / (reach.gemm_memory_frac * 2.039e12),
        2 * 16 * 4096 * 8192 / (reach.gemm_flops_frac * 312e12),
    )
    memory *= 2.039e12 / row.device.memory_bandwidth.si
    expected = reach.gemm_launch_s + (memory**2 + compute**2) ** 0.5
    assert evidence.predicted(row) == pytest.approx(1e6 * expected, rel=1e-6)


def test_requests_that_end_one_by_one_by_hand(tmp_path):
    """Prompts, then as many steps as the longest answer has, 10 * 100 / 300 requests in each on average."""
    cells = {"quantity": "output throughput of 100 requests at once", "batch": 10, "output_tokens": "100 to 300"}
    (row,) = evidence.read(table(tmp_path, changed(BASE, **cells)))
    first = row.point(output_tokens=300).run(10).wave.prefill_s
    step = row.point(output_tokens=300).run(3).wave.decode_step_s
    assert evidence.predicted(row) == pytest.approx(10 * 100 / (first + 300 * step), rel=0.01)


def test_requests_that_do_not_fit_at_once_wait_for_memory(tmp_path):
    """100 requests of 281 and up to 512 tokens in 3 GiB: 131,072 bytes a token hold 24,576 of them."""
    cells = {
        "model": "llama3.1-8b",
        "quantity": "output throughput of 100 requests at once",
        "batch": "100 at once",
        "input_tokens": 281,
        "output_tokens": "mean 355, most 512",
    }
    (row,) = evidence.read(table(tmp_path, changed(BASE, **cells)))
    assert evidence.predicted(row, kv_cache_memory_bytes=3 * 2**30) < 0.8 * evidence.predicted(row)


def test_an_open_batch_is_the_largest_that_fits(tmp_path):
    (row,) = evidence.read(table(tmp_path, changed(BASE, batch="best")))
    assert row.is_open
    assert evidence.predicted(row) > 700


# what is refused, with file and line


@each(
    ("rows", "message"),
    [
        ([changed(BASE, value=0)], "t.csv:2: value = '0': must be more than 0"),
        ([changed(BASE, value="nan")], "t.csv:2: value = 'nan': must be a number"),
        ([changed(BASE, value=-3)], "t.csv:2: value = '-3': must be more than 0"),
        ([changed(BASE, value="1e400")], "t.csv:2: value = '1e400'"),
        ([changed(BASE, value="")], "t.csv:2: value = '': must be a number"),
        ([BASE, changed(PACKED, is_base=2)], "t.csv:3: is_base = '2': must be 0 or 1"),
        ([BASE, changed(PACKED, id="r1")], "t.csv:3: id = 'r1': is given twice"),
        ([changed(BASE, id="")], "t.csv:2: id = '': must be there"),
        ([BASE, changed(PACKED, is_base=1)], "group = 'g': has two rows with is_base 1: give it one"),
        (["r1,A100"], "t.csv:2: has 2 cells: the header has 16 columns"),
        ([], "t.csv: has a header but no rows"),
    ],
)
def test_bad_tables_are_one_line(tmp_path, rows, message):
    with pytest.raises(InputError) as told:
        evidence.read(table(tmp_path, *rows))
    assert message in str(told.value)
    assert len(told.value.lines()) == 1


@pytest.mark.parametrize("name", evidence.NEEDED)
def test_a_missing_column_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"t.csv:1: column {name} is missing"):
        evidence.read(table(tmp_path, BASE, head=HEAD.replace(name, "other", 1)))


# what is not known: a reason, and the other rows go on


@each(
    ("cells", "reason"),
    [
        ({"device": "H700"}, "unknown device"),
        ({"model": "Nobody-7B"}, "unknown model"),
        ({"stack": "mlc-llm"}, "stack = 'mlc-llm': is not known"),
        ({"kv": "int3ish"}, "unknown quantizer"),
        ({"kv": "qserve@"}, "names no implementation behind @"),
        ({"kv": "qserve@kivi-released"}, "kivi-released runs kivi"),
        ({"quantity": "joy"}, "quantity = 'joy': is not known"),
        ({"unit": "parsec"}, "unit = 'parsec'"),
        ({"unit": "ms"}, "unit = 'ms': output throughput, prompt included must be in token/s"),
        ({"weights": "INT3"}, "weights = 'INT3'"),
        ({"n_devices": "0"}, "n_devices = '0'"),
        ({"batch": "0"}, "batch = '0'"),
        ({"input_tokens": "1.5"}, "input_tokens = '1.5'"),
        ({"output_tokens": "0"}, "output_tokens = '0'"),
        ({"model": "attention 0 query, 0 KV heads of 0"}, "query heads = '0': must be a whole number from 1"),
        ({"model": "attention 7 query, 2 KV heads of 64"}, "2 KV heads do not divide 7 query heads"),
        ({"model": f"attention {'9' * 5000} query, 2 KV heads of 64"}, "must be a whole number from 1 to 65,536"),
        ({"model": "matrix product", "quantity": "time of one product", "unit": "us"}, "must say N and K, such as"),
        ({"model": "matrix product, N 0, K 8", "quantity": "time of one product", "unit": "us"}, "N = '0'"),
    ],
)
def test_what_is_not_known_is_a_reason(tmp_path, cells, reason):
    found = gains.run(table(tmp_path, changed(PACKED, id="odd", **cells), BASE))
    assert reason in found[0].reason
    assert "\n" not in found[0].reason
    assert found[0].value is None
    assert found[1].value
    assert not found[1].reason


def test_no_broken_table_is_a_traceback(tmp_path):
    """40 tables with cells of nonsense: refused, or judged with a reason."""
    draw = random.Random(4)
    odd = [
        "",
        " ",
        "0",
        "-1",
        "nan",
        "inf",
        "1e999",
        "٣",
        "=cmd()",
        "a" * 400,
        "😀",
        "1,5",
        "..",
        "best",
        "(1",
        "@",
        ":",
        "plan:",
        "plan:/",
        "fp16:x=1",
        "qserve@omniserve",
        "A100",
        "attention 1 query, 1 KV heads of 1",
        "w8a8",
        "not stated (run as )",
        "tokens in the pool",
        "out of memory",
        "first token latency",
        "bool",
        "9" * 30,
    ]
    for number in range(40):
        cells = {draw.choice(NAMES[1:]): draw.choice(odd) for _ in range(draw.randint(1, 4))}
        path = table(tmp_path, changed(PACKED, **cells), BASE)
        try:
            found = gains.run(path)
        except DseError:
            continue
        assert found[0].reason or found[0].value is not None, (number, cells)
        gains.text(found)
        files.publish(str(tmp_path / "out"), gains.contents_of(found))


def test_every_name_of_tables_is_one_of_ours():
    for name in evidence.KV.values():
        build("llama2-7b", name)
