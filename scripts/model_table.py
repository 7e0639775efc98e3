"""Write docs/reference/models.md, after a change of the models that ship: python scripts/model_table.py.

Its table holds the bytes a token of every shipped model, beside published ones.
"""

from pathlib import Path

from dse.report import listing
from dse.specs import catalog

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"
#: bytes of a token over all layers that others print, 16-bit keys and values; whole KiB where they round so
PUBLISHED_BYTES = {
    "deepseek-v3": (69 * 1024, "69 KiB: The weight of remembering, news.future-shock.ai"),
    "deepseek-v4-pro": (9_851, "9.62 GiB of 1,048,576 tokens, index keys in 16 bits, here FP4: AINews, 25 April 2026"),
    "llama3-8b": (128 * 1024, "128 KiB: The weight of remembering, news.future-shock.ai"),
    "llama3.1-8b": (131_072, "kv-cache-size 0.1.1, README"),
}
_HEAD = """# Models by name

Every model that ships, as `dse list models` has it; `dse show NAME` prints all of its numbers with their sources. Bytes
are those that one more token adds over all layers with 16-bit keys and values, the index of a model that has one
included. Layers with a window stop adding once it is full: the bytes beyond windows are those of a long context.
A column of its own has the bytes that a request keeps at any length (constant states, tokens without a compressed
entry). Parameters are counted from the shape, without vision encoders and multi-token prediction. A test compares it
with the catalog; `python scripts/model_table.py` makes it.

| family | model | parameters | published | B a token | B beyond windows | B a request | published B a token | source |
|---|---|---|---|---|---|---|---|---|
"""


def text() -> str:
    """The whole file."""
    return _HEAD + "".join(_line(row["name"], row["kv_bytes_per_token_fp16"]) for row in listing.list_models())


def _line(name: str, kv_bytes: int) -> str:
    model = catalog.model(name)
    published = f"{model.published_parameters:,}" if model.published_parameters else "-"
    printed = f"{PUBLISHED_BYTES[name][0]:,} ({PUBLISHED_BYTES[name][1]})" if name in PUBLISHED_BYTES else "-"
    cells = [
        listing.family(name),
        name,
        f"{model.parameters:,}",
        published,
        f"{kv_bytes:,}",
        f"{listing.kv_bytes_beyond_windows(model):,}",
        f"{model.state_bytes:,}" if model.state_bytes else "-",
        printed,
        model.source,
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
