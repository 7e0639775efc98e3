"""What quantizing activations in blocks adds: pairs of one release alone, and a known start is found again."""

import math

import numpy as np
import pytest

from calibration import benchmarked, quantizing
from calibration.quantizing import Pair
from dse.calibrate.servers import read
from dse.core import files
from dse.core.errors import InputError
from dse.model import engine
from dse.specs import catalog

HEAD = "id,backend,backend_version,model_path,system,precision,isl,osl,batch_size,tp_size,silicon_tpot_ms\n"


def rows(tmp_path, *lines):
    path = tmp_path / "rows.csv"
    path.write_text(HEAD + "".join(f"{i},{line}\n" for i, line in enumerate(lines)))
    return read(str(path))


def test_pairs_are_of_one_release_and_layout_and_one_is_in_blocks(tmp_path):
    same = "1024,1024,8,4"
    blocks = f"sglang,0.5.9,Qwen/Qwen3-235B-A22B,b200_sxm,fp8,{same},10"
    found = rows(
        tmp_path,
        blocks,
        f"sglang,0.5.9,Qwen/Qwen3-235B-A22B,b200_sxm,bf16,{same},12",
        f"sglang,0.5.8,Qwen/Qwen3-235B-A22B,b200_sxm,bf16,{same},12",
        f"sglang,,Qwen/Qwen3-235B-A22B,b200_sxm,bf16,{same},12",
        "sglang,0.5.9,Qwen/Qwen3-235B-A22B,b200_sxm,bf16,1024,1024,8,8,9",
        blocks,
    )
    assert [tuple(row.id for row in pair) for pair in quantizing.alike(found)] == [("0", "1"), ("1", "5")]


def test_a_microsecond_of_it_by_hand(tmp_path):
    """Qwen3-235B-A22B has 94 layers of two products of attention and a router, and the head: 283. A prompt's steps are
    few beside 1,024 tokens."""
    blocks, plain = rows(
        tmp_path,
        "sglang,0.5.9,Qwen/Qwen3-235B-A22B,b200_sxm,fp8,16,1024,1,4,10",
        "sglang,0.5.9,Qwen/Qwen3-235B-A22B,b200_sxm,bf16,16,1024,1,4,12",
    )
    (pair,) = quantizing.pairs_of([blocks, plain])
    assert pair.measured == pytest.approx(math.log(10 / 12))
    assert pair.first[1] == pytest.approx(283e-6, rel=0.01)
    assert pair.second[1] == 0
    shipped = catalog.unmeasured_kernels().block_quantizing.si
    steps = [engine.evaluate(row.point())["decode_step_s"] for row in (blocks, plain)]
    starts = [row.point().design.stack.gemm_launch_s for row in (blocks, plain)]
    assert starts[0] - starts[1] == pytest.approx(shipped)
    assert steps[0] > 283 * shipped


def drawn(start, seed=5):
    """Pairs of three models whose times have this start (us) in one of the two, a few far off."""
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(90):
        bare, other, slope = rng.uniform(5e-3, 2e-2), rng.uniform(5e-3, 2e-2), rng.uniform(2e-4, 5e-4)
        noise = rng.normal(0, 0.01) + (i % 15 == 0) * 0.6
        pairs.append(
            Pair("abc"[i % 3], "", math.log((bare + start * slope) / other) + noise, (bare, slope), (other, 0.0))
        )
    return pairs


def test_a_known_start_is_found_again_with_each_model_left_out():
    pairs = drawn(4.0)
    assert quantizing.fit(pairs) == pytest.approx(4.0, abs=0.2)
    errors, fits = quantizing.left_out(pairs)
    assert fits == pytest.approx([4.0] * 3, abs=0.4)
    assert np.median(np.abs(errors)) < 0.02 < np.median(np.abs(quantizing.off(pairs, 0.0)))
    assert quantizing.number_of(drawn(0.0))["value"] == pytest.approx(0, abs=0.2)


def test_a_table_without_pairs_is_refused(tmp_path):
    with pytest.raises(InputError, match="no two rows of a release"):
        quantizing.pairs_of(rows(tmp_path, "sglang,0.5.9,Qwen/Qwen3-235B-A22B,b200_sxm,bf16,16,16,1,4,12"))
    with pytest.raises(InputError, match="give the paths"):
        quantizing.main([])
    with pytest.raises(InputError, match="all pairs are of a: give rows of two models"):
        quantizing.number_of([pair for pair in drawn(4.0) if pair.model == "a"])


def test_the_file_is_written_beside_the_other_numbers(tmp_path, monkeypatch):
    """Of the file's other numbers none changes."""
    monkeypatch.setattr(benchmarked, "FOLDER", tmp_path)
    files.write(tmp_path / "kernels.toml", b'unpacked_share = { value = 0.6, unit = "1" }\n')
    monkeypatch.setattr(quantizing, "pairs_of", lambda _: drawn(4.0))
    table = tmp_path / "t.csv"
    table.write_text(HEAD + "a,sglang,0.5.9,Qwen/Qwen3-235B-A22B,b200_sxm,bf16,16,16,1,4,12\n")
    quantizing.main([str(table)])
    found = benchmarked.shipped()["kernels"]
    assert found["unpacked_share"]["value"] == 0.6
    assert found["block_quantizing"]["value"] == pytest.approx(4.0, abs=0.2)
    assert "90 pairs of 3 models" in found["block_quantizing"]["source"]
