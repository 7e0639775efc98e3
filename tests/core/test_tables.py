"""Tables of users: what is damaged, announced beyond memory or named twice is one line, whoever reads it."""

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import each
from dse.core import tables
from dse.core.errors import InputError, LimitError, SpecError, show
from dse.model.uncertainty import of_weights


def parquet_bytes(frame):
    content = io.BytesIO()
    frame.to_parquet(content)
    return content.getvalue()


GOOD = parquet_bytes(pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}))


def read(path):
    """The frame of a file of either kind."""
    if path.suffix == ".csv":
        return tables.read_csv(path, "a table", 100)
    with tables.parquet(path) as file:
        return file.read().to_pandas()


@each(
    ("name", "content", "says"),
    [
        ("t.parquet", b"PAR1 no", "cannot be read as a table"),
        ("t.parquet", GOOD[:-20], "cannot be read as a table"),
        ("t.parquet", GOOD.replace(b"float64", b"float63"), "float63"),  # TypeError of numpy
        ("t.csv", b"", "cannot be read as a table"),
        ("t.csv", b'a\n"1', "cannot be read as a table"),
        ("t.csv", b"a,a\n1,2\n", "column 'a' is there twice"),
        ("t.csv", b"a\n\xff\n", "cannot be read as a table"),
        ("t.csv", b"a,a\r1,2\r", "column 'a' is there twice"),  # lines as of an old Mac
        ("t.csv", b"\xd2\r\x00\xff,\x81", "cannot be read as a table"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        read(tmp_path / name)
    assert not isinstance(refused.value, SpecError)
    assert str(refused.value).startswith(f"{show(str(tmp_path / name))}: ")
    assert says in str(refused.value)


def test_a_few_bytes_that_announce_more_than_memory_are_refused(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": np.zeros(10_000), "b": np.zeros(10_000)}), tmp_path / "t.parquet")
    monkeypatch.setattr(tables, "MAX_CELLS", 15_000)
    with pytest.raises(LimitError, match="has 20,000 cells: at most 15,000"):
        read(tmp_path / "t.parquet")
    with tables.parquet(tmp_path / "t.parquet", columns=["a"]) as file:
        assert file.read(columns=["a"]).num_rows == 10_000
    (tmp_path / "t.csv").write_text("a\n" * 100)
    with pytest.raises(LimitError, match="has 200 bytes: at most 100"):
        read(tmp_path / "t.csv")


def test_a_table_without_assumptions_is_compared_all_the_same():
    row = {"weights": "bf16", "assumptions": float("nan")}  # an empty cell
    assert of_weights(row, {**row, "weights": "fp8"}) == []
