"""`dse list models`: families, the text that chooses among them, and docs/reference/models.md beside the catalog."""

import json
from pathlib import Path

import pytest

from dse.report import listing
from dse.specs import catalog
from factories import assert_one_line
from scripts import model_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


def listed(run, *words: str) -> str:
    code, out, _ = run("list", *words)
    assert code == 0
    return out


def test_families_stand_together_from_small_to_large(run):
    rows = json.loads(listed(run, "models", "--json"))
    assert len(rows) == len(catalog.model_files()) >= 60
    order = [(row["family"], row["n_parameters"]) for row in rows]
    assert order == sorted(order)
    families = {row["name"]: row["family"] for row in rows}
    assert families["llama3.1-70b"] == families["llama-30b"] == "llama"
    assert (families["gpt-oss-20b"], families["phi-4"], families["dbrx"]) == ("gpt", "phi", "dbrx")
    heads = [line.split(" ")[0] for line in listed(run, "models").splitlines()[1:]]
    assert [head for head in heads if head] == sorted(set(families.values()))


@pytest.mark.parametrize(
    ("kind", "pattern", "names"),
    [
        ("models", "QWEN3-3", ["qwen3-30b-a3b", "qwen3-32b"]),
        ("models", "latent attention", [name for name in catalog.model_files() if name.startswith("deepseek-v2")]),
        ("models", "GLM-4.6", ["glm-4.7"]),  # in the title
        ("devices", "h100", ["H100", "H100-NVL", "H100-PCIe"]),
        ("quantizers", "kivi", ["kivi"]),
    ],
)
def test_a_text_chooses_by_name_or_title(run, kind, pattern, names):
    found = [row["name"] for row in json.loads(listed(run, kind, pattern, "--json"))]
    assert set(names) <= set(found)
    if kind != "quantizers" and "latent" not in pattern:
        assert sorted(found) == sorted(names)
    for name in found:
        assert name in listed(run, kind, pattern)


def test_a_text_that_nothing_has_is_said(run):
    said = "no models with 'nosuch' in the name or title: see `dse list models`"
    assert_one_line(run("list", "models", "nosuch"), 2, said)


def test_the_page_of_models_is_what_the_catalog_says():
    """`python scripts/model_table.py` makes it anew."""
    assert PAGE.read_text(encoding="utf-8") == model_table.text()


# DeepSeek-V4's count index keys in 16 bits: tests/specs/test_architectures.py
@pytest.mark.parametrize("name", sorted(model_table.PUBLISHED_BYTES.keys() - {"deepseek-v4-pro"}))
def test_bytes_of_a_token_are_the_published_ones(name):
    rows = {row["name"]: row for row in listing.list_models()}
    # a number of whole KiB is rounded to half of one
    assert rows[name]["kv_bytes_per_token_fp16"] == pytest.approx(model_table.PUBLISHED_BYTES[name][0], abs=512)


def test_bytes_beyond_windows_stand_where_they_differ(run):
    out = run("point", "--device", "b300", "--model", "gemma-4-31b", "--batch", "1", "--all")[1]
    assert "KV cache of a token                     901,120 B/token\n    KV cache of a token beyond windows  " in out
    assert "KV cache of a token beyond windows    81,920 B/token\n" in out
    assert "beyond windows" not in run("point", "--device", "b300", "--model", "llama3.1-8b", "--all")[1]
    rows = {row["name"]: row for row in json.loads(run("list", "models", "--json")[1])}
    assert rows["gemma-4-31b"]["kv_bytes_beyond_windows_fp16"] == 81_920
    assert rows["llama3.1-8b"]["kv_bytes_beyond_windows_fp16"] is None
