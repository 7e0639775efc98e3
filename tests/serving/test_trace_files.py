"""Trace files: two schemas, whatever can be wrong with them, and the compiled scan against the careful reader."""

import os
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from dse.core.errors import InputError, LimitError
from dse.serving import trace_files as traffic_file
from dse.serving import trace_scan as traffic_scan

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"
#: with and without compiled code
EACH_WAY = pytest.mark.parametrize("compile_bytes", [0, 2**60], ids=["compiled", "careful"])


@pytest.fixture
def write(tmp_path):
    def put(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return put


@EACH_WAY
def test_azure(write, compile_bytes):
    path = write(AZURE + ROW + "2023-11-16 18:15:50.9951690,396,109\n2023-11-16T18:16:46+00:00,1,1")
    found = traffic_file.read(path, compile_bytes=compile_bytes)
    assert found.arrival_s.tolist() == [0.0, 4.314579, 59.31941]  # 50.995169 - 46.68059; 60 - 0.68059
    assert found.input_tokens.tolist() == [374, 396, 1]
    assert found.output_tokens.tolist() == [44, 109, 1]
    summary = traffic_file.summary(path, compile_bytes=compile_bytes)
    assert (summary.schema, summary.n_failed) == ("Azure", 0)
    assert summary.lengths.moments.duration_s == 59.31941
    assert summary.lengths.moments.mean_input_tokens == 257.0  # 771 / 3


@EACH_WAY
def test_burstgpt_leaves_out_failed_requests(write, compile_bytes):
    rows = "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
    path = write(BURST + rows)
    summary = traffic_file.summary(path, compile_bytes=compile_bytes)
    assert (summary.schema, summary.n_failed, summary.lengths.moments.n_requests) == ("BurstGPT", 1, 2)
    assert traffic_file.read(path, compile_bytes=compile_bytes).arrival_s.tolist() == [0.0, 113.0]


def test_burstgpt_with_sessions(write):
    path = write(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n19440161.25,,2,ChatGPT,36,29,65,API log\n"
    )
    assert traffic_file.read(path).arrival_s.tolist() == [0.0, 51.25]


@EACH_WAY
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("374", '"374"'),
        lambda text: text.replace("374", " 374 "),
        lambda text: text.replace("46.6805900", "46.68059"),
        lambda text: text.replace("Tokens\n", "Tokens,note\n").replace(",44\n", ",44,=cmd()\n"),
        lambda text: text.lower(),
        lambda text: text.replace("TIMESTAMP", "Timestamp"),
    ],
    ids=[
        "crlf",
        "bom",
        "no-newline",
        "blank-lines",
        "quoted",
        "blanks",
        "fewer-digits",
        "more-columns",
        "lower-case",
        "other-case",
    ],
)
def test_written_otherwise_but_the_same(write, change, compile_bytes):
    plain, other = (
        traffic_file.read(write(text, name), compile_bytes=compile_bytes)
        for text, name in ((AZURE + ROW, "a"), (change(AZURE + ROW), "b"))
    )
    assert other.input_tokens.tolist() == plain.input_tokens.tolist() == [374]
    assert other.output_tokens.tolist() == [44]


LATER = "2023-11-16 18:15:47,"
BAD = {
    "ragged": (AZURE + ROW + LATER + "5\n", ":3: has 2 cells: the header has 3 columns"),
    "too-many-cells": (AZURE + ROW + LATER + "5,6,7\n", ":3: has 4 cells"),
    "missing-column": ("TIMESTAMP,ContextTokens\n", "column GeneratedTokens is missing: the header has 'TIMESTAMP,"),
    "misspelt": ("TIMESTAMP,ContextTokens,GeneratedToken\n" + ROW, "did you mean GeneratedToken"),
    "duplicate-column": ("TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n", "'ContextTokens' is given twice"),
    "text": (AZURE + ROW + LATER + "many,5\n", ":3: ContextTokens = 'many': must be a whole number from 1 to"),
    "underscore": (AZURE + ROW + LATER + "1_0,5\n", ":3: ContextTokens = '1_0'"),
    "arabic-digits": (AZURE + ROW + LATER + "١٢,5\n", ":3: ContextTokens = '١٢'"),
    "fullwidth-digits": (AZURE + ROW + LATER + "5,１２\n", ":3: GeneratedTokens = '１２'"),
    "nan": (AZURE + ROW + LATER + " nan ,5\n", ":3: ContextTokens = 'nan'"),
    "infinity": (AZURE + ROW + LATER + "infinity,5\n", ":3: ContextTokens = 'infinity'"),
    "float": (AZURE + ROW + LATER + "5.0,5\n", ":3: ContextTokens = '5.0'"),
    "negative": (AZURE + ROW + LATER + "-5,5\n", ":3: ContextTokens = '-5'"),
    "empty-cell": (AZURE + ROW + LATER + ",5\n", ":3: ContextTokens = ''"),
    "zero-output": (AZURE + ROW + LATER + "5,0\n", ":3: GeneratedTokens = '0': must be a whole number from 1 to"),
    "huge-length": (AZURE + ROW + LATER + "5,99999999\n", ":3: GeneratedTokens = '99999999'"),
    "longer-than-any-number": (AZURE + ROW + LATER + "5," + "9" * 5000 + "\n", ":3: GeneratedTokens = '999"),
    "formula": (AZURE + ROW + LATER + "=cmd(),5\n", ":3: ContextTokens = '=cmd()'"),
    "nul": (AZURE + ROW + LATER + "5\0,5\n", ":3: holds a NUL byte"),
    "latin-1": (AZURE.encode() + b"\xe9,5,5\n", ":2: is not UTF-8 text"),
    "open-quote": (AZURE + ROW + LATER + '"5,5\n' + ROW * 3, ":3: is not valid CSV"),
    "huge-field": (AZURE + ROW + LATER + "5" * 140_000 + ",5\n", ":3: has 140,"),
    "no-newline-at-all": (AZURE + ROW + "x" * 3 * 2**20, ":3: has more than 131,072 bytes"),
    "unsorted": (AZURE + ROW + "2023-11-16 18:15:46.680589999,5,5\n", "46.680589999': must not be before"),
    "no-such-day": (AZURE + "2023-02-29 18:15:46,5,5\n", ":2: TIMESTAMP = '2023-02-29 18:15:46': must be a time such"),
    "no-such-hour": (AZURE + "2023-02-20 24:15:46,5,5\n", ":2: TIMESTAMP"),
    "before-1970": (AZURE + "1969-12-31 23:59:59,5,5\n", ":2: TIMESTAMP"),
    "negative-time": (BURST + "-5,GPT-4,5,5,10,API log\n", ":2: Timestamp = '-5': must be seconds such as"),
    "nan-time": (BURST + "nan,GPT-4,5,5,10,API log\n", ":2: Timestamp = 'nan'"),
    "exponent-time": (BURST + "1e3,GPT-4,5,5,10,API log\n", ":2: Timestamp = '1e3'"),
    "late-time": (BURST + "9999999999,GPT-4,5,5,10,API log\n", ":2: Timestamp"),
    "semicolons": (AZURE.replace(",", ";") + ROW.replace(",", ";"), "separate cells by commas"),
    "semicolons-below": (AZURE + ROW.replace(",", ";"), ":2: has 1 cell: "),
    "old-mac": ((AZURE + ROW).replace("\n", "\r"), ":1: lines end with a carriage return alone"),
    "old-mac-long": ((AZURE + ROW * 9000).replace("\n", "\r"), ":1: lines end with a carriage return alone"),
    "missing-no-hint": ("TIMESTAMP,ContextTokens,note\n", "GeneratedTokens is missing: the header has 'TIMESTAMP,Cont"),
    "twice-in-other-case": ("timestamp,Timestamp,contexttokens,generatedtokens\n", "'timestamp' is given twice"),
    "other-csv": ("a,b,c\n1,2,3\n", "must have TIMESTAMP, ContextTokens, GeneratedTokens (Azure)"),
    "empty": ("", "is empty: give a CSV file"),
    "only-a-header": (AZURE, "has a header but no rows"),
    "only-a-header-without-newline": (AZURE.strip(), "has a header but no rows"),
    "only-failures": (BURST + "1,GPT-4,0,0,0,API log\n", "has 1 failed request and no other"),
    "utf-16": ((AZURE + ROW).encode("utf-16"), ":1: is UTF-16 text: save the CSV file as UTF-8"),
    "utf-16-be": (b"\xfe\xff" + (AZURE + ROW).encode("utf-16-be"), ":1: is UTF-16 text"),
    "utf-16-no-mark": ((AZURE + ROW).encode("utf-16-le"), ":1: holds a NUL byte: give a CSV file, saved as UTF-8"),
}


@EACH_WAY
@each("name", BAD)
def test_bad_trace_is_one_line_with_its_place(write, name, compile_bytes):
    content, expected = BAD[name]
    path = write(content)
    for how in (traffic_file.summary, traffic_file.read):
        with pytest.raises(InputError) as caught:
            how(path, compile_bytes=compile_bytes)
        (line,) = caught.value.lines()
        assert line.startswith(path)
        assert expected in line
        assert len(line) <= 300


def test_directory_and_missing_file(tmp_path):
    with pytest.raises(InputError, match="is a directory: give the path of a"):
        traffic_file.summary(str(tmp_path))
    with pytest.raises(InputError, match="cannot be read: no such file"):
        traffic_file.summary(str(tmp_path / "none.csv"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match="is not a regular file"):
        traffic_file.summary(str(tmp_path / "fifo"))


def test_too_many_for_memory(write):
    path = write(AZURE + ROW * 5)
    with pytest.raises(LimitError, match="has more than 4 requests"):
        traffic_file.read(path, max_requests=4)
    assert len(traffic_file.read(path, max_requests=5).input_tokens) == 5


@EACH_WAY
def test_a_file_of_many_blocks(write, monkeypatch, compile_bytes):
    monkeypatch.setattr(traffic_file, "BLOCK_BYTES", 256)
    rng = np.random.default_rng(3)
    inputs, outputs = rng.integers(1, 5000, 1000), rng.integers(1, 800, 1000)
    rows = "".join(f"2023-11-{1 + k // 100:02d} 01:02:03,{inputs[k]},{outputs[k]}\n" for k in range(1000))
    path = write(AZURE + rows)
    found = traffic_file.read(path, compile_bytes=compile_bytes)
    assert found.input_tokens.tolist() == inputs.tolist()
    assert found.output_tokens.tolist() == outputs.tolist()
    assert found.arrival_s[-1] == 9 * 86400.0
    seen = []

    class Bar:
        def __init__(self, items, label, length):
            self.items = items
            seen.append((label, length > 100))

        def __enter__(self):
            return self.items

        def __exit__(self, *error):
            seen.append("closed")

    moments = traffic_file.summary(path, Bar).lengths.moments
    assert seen == [("trace", True), "closed"]
    assert moments.mean_input_tokens == inputs.sum() / 1000
    path = write(AZURE + rows + "2023-11-30 01:02:03,5,x\n")
    with pytest.raises(InputError, match=r":1002: GeneratedTokens = 'x'"):
        traffic_file.summary(path, compile_bytes=compile_bytes)


NUMBERS = st.sampled_from(
    ["1", "0", "12", "4194304", "4194305", "9999999", "00000007", "1_0", "", " 5", "+5", "5.0", "٣"]
)
SECONDS = st.sampled_from(
    ["0", "5", "5.5", "5.123456789", "5.1234567891", "9000000000", "9000000001", "5.", ".5", "-1"]
)
DATES = st.datetimes(datetime(1969, 12, 30), datetime(2300, 1, 1)).map(str) | st.sampled_from(
    [
        "2023-11-16 18:15:46Z",
        "2023-11-16T18:15:46.5+00:00",
        "2023-11-16 18:15:46+01:00",
        "2023-13-01 00:00:00",
        "2023-11-16 18:15:60",
        "2023-11-16 18:15",
        "2023-11-31 00:00:00",
        "2024-02-29 00:00:00",
        "2023-02-29 00:00:00",
        "2023-11-16 18:15:46+00:0",
        "2023-11-16 18:15:46+00300",
        "2023-11-16:18:15:46",
        "2023/11/16 18:15:46",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", ",\n", "\r\r\n", " \n"])


@given(st.booleans(), st.data())
@settings(max_examples=4 * settings.default.max_examples)
def test_scan_says_what_the_careful_reader_says(is_iso, data):
    schema = traffic_file.SCHEMAS[0 if is_iso else 1]
    line = ",".join((data.draw(DATES if is_iso else SECONDS), data.draw(NUMBERS), data.draw(NUMBERS))) + data.draw(ENDS)
    reader = traffic_file._RowReader("x", schema, [traffic_scan.TIME, traffic_scan.INPUT, traffic_scan.OUTPUT])
    rows, raw = np.empty((3, 1), np.int64), line.encode()
    least = 0 if schema.has_failures else 1
    columns = traffic_scan.Columns(np.array(reader.kinds), is_iso, least, traffic_file.MAX_TOKENS)
    position, n = traffic_scan.scan(raw, 0, columns, 0, rows, 0)
    fast = tuple(rows[:, 0].tolist()) if n else None
    assert (position, n) in ((0, 0), (len(raw), 1))
    try:
        careful = reader.row(raw)
    except InputError:
        careful = None
    if fast is not None:
        assert fast == careful
    compiled = traffic_scan.compiled()
    assert compiled(np.frombuffer(raw, np.uint8), 0, columns, 0, rows, 0) == (position, n)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)))
@settings(max_examples=2 * settings.default.max_examples)
def test_dates_of_the_scan(when):
    when = when.replace(microsecond=0)
    text = f"{when} ".encode()
    expected = -1 if (when.month, when.day) == (2, 29) else int(when.replace(tzinfo=UTC).timestamp())
    assert traffic_scan._date(text, 0, len(text)) == expected


def test_rows_are_plain_where_written_as_azure_writes_them():
    raw = ROW.encode()
    columns = traffic_scan.Columns(np.array([1, 2, 3]), True, 1, 1000)
    assert traffic_scan.scan(raw, 0, columns, 0, np.empty((3, 1), np.int64), 0) == (len(raw), 1)
