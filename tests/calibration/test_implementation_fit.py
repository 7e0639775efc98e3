"""Fits of implementations: a table made from known numbers gives them back, and the file says what was fitted."""

import json

import pytest
from click.testing import CliRunner

from calibration import implementations
from dse.calibrate import evidence
from dse.cli.main import cli
from dse.core import specfile
from dse.core.errors import InputError
from dse.specs import catalog
from dse.specs.device_and_model import load
from dse.specs.implementation import Implementation

HEAD = "id,device,model,weights,kv,stack,batch,input_tokens,output_tokens,quantity,value,unit,group,is_base"
SERVED = [(model, batch) for model in ("Llama-2-7B", "Llama-3-8B", "Mistral-7B") for batch in (8, 32)]
KERNELS = [(heads, n) for heads in (32, 8) for n in (1024, 8192, 65536)]


def made(path, designs, asked):
    """A table of these designs with the values that are predicted with an implementation's numbers as `asked`."""
    path.write_text("\n".join([HEAD, *designs]) + "\n")
    rows = evidence.read(str(path))
    values = [evidence.predicted(row, **({"implementation": asked} if "@" in row.kv else {})) for row in rows]
    lines = [design.replace(",1.0,", f",{value:.12g},") for design, value in zip(designs, values, strict=True)]
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return str(path)


def served():
    for i, (model, batch) in enumerate(SERVED):
        for kv, stack, is_base in (("FP16", "TensorRT-LLM", 1), ("INT4 per head", "QServe", 0)):
            yield (
                f"{stack}{i},A100-80GB,{model},FP16,{kv},{stack},{batch},2048,256,output throughput,1.0,token/s,"
                f"g{i},{is_base}"
            )


def kernels():
    for i, (n_kv, n) in enumerate(KERNELS):
        yield (
            f'k{i},RTX A6000,"attention 32 query, {n_kv} KV heads of 128",FP16,"int4, keys per channel",'
            f"BitDecoding,8,{n},,decode attention of one layer,1.0,us,,0"
        )


def test_a_table_of_a_known_rate_gives_it_back(tmp_path):
    """Six throughputs, each with a base of 16 bits, made with 4 elements a cycle: fitted by their gains."""
    table = made(tmp_path / "t.csv", list(served()), "omniserve:elements_per_cycle=4")
    done = implementations.run(table, str(tmp_path / "out"))
    (fitted,) = done["fits"]
    assert (fitted["name"], fitted["rows"], fitted["not_told"]) == ("omniserve", 6, [])
    found = fitted["numbers"]["elements_per_cycle"]
    assert found["value"] == pytest.approx(4, rel=0.01)
    # the narrowest range there is: 1.2816 standard deviations of 8 %
    assert found["high"] / found["value"] == pytest.approx(1.108, rel=0.01)
    assert found["value"] / found["low"] == pytest.approx(1.108, rel=0.01)
    assert fitted["mean"] < 1e-3
    assert fitted["left_out_mean"] < 1e-3
    path = tmp_path / "out" / "omniserve.toml"
    written, shipped = load(specfile.read(path), Implementation), catalog.implementations_of("qserve")["omniserve"]
    assert written.elements_per_cycle.value == pytest.approx(4, rel=0.01)
    assert written.elements_per_cycle.kind == "measured"
    assert written.elements_per_cycle.source.startswith("t.csv: 6 rows, mean error 0.0 %")
    number = shipped.elements_per_cycle
    assert written.model_copy(update={"elements_per_cycle": number}) == shipped
    assert "omniserve: 6 rows, mean error" in implementations.text(done)


def test_two_numbers_come_back_from_times_of_kernels(tmp_path):
    """Decode attention of one layer at three lengths, with and without groups, made with 20 elements and 12 us."""
    table = made(tmp_path / "t.csv", list(kernels()), "bitdecoding:elements_per_cycle=20,launch=12")
    result = CliRunner().invoke(
        cli.commands["calibrate"],
        [table, "--kernel", "implementation", "--out", str(tmp_path / "out"), "--json"],
        catch_exceptions=False,
    )
    (fitted,) = json.loads(result.output)["fits"]
    assert fitted["name"] == "bitdecoding"
    assert fitted["numbers"]["elements_per_cycle"]["value"] == pytest.approx(20, rel=0.02)
    assert fitted["numbers"]["launch"]["value"] == pytest.approx(12, rel=0.02)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bitdecoding.toml"}


def test_rows_that_cannot_be_predicted_are_left_out(tmp_path):
    odd = [
        "x,A100-80GB,Llama-2-7B,FP16,INT4 per head,QServe,8,64,64,output throughput,5,parsec,,0",
        "y,H700,Llama-2-7B,FP16,INT4 per head,QServe,8,64,64,output throughput,5,token/s,,0",
        "z,A100-80GB,Llama-2-7B,FP16,int3,QServe,8,64,64,output throughput,5,token/s,z,1",
        "w,A100-80GB,Llama-2-7B,FP16,INT4 per head,QServe,8,64,64,joy,5,token/s,z,0",
    ]
    table = tmp_path / "t.csv"
    text = (tmp_path / "t.csv").write_text
    path = made(table, list(served()), "omniserve:elements_per_cycle=6")
    text(table.read_text() + "\n".join(odd) + "\n")
    (fitted,) = implementations.run(path, str(tmp_path / "out"))["fits"]
    assert fitted["rows"] == 6
    assert fitted["numbers"]["elements_per_cycle"]["value"] == pytest.approx(6, rel=0.01)


def test_too_few_rows_are_refused(tmp_path):
    table = made(tmp_path / "t.csv", list(served())[:6], "omniserve:elements_per_cycle=4")
    with pytest.raises(InputError, match="no rows of an implementation with numbers to fit"):
        implementations.run(table, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
