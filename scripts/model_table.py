"""Write docs/reference/models.md, after a change of the models that ship: python scripts/model_table.py."""

from pathlib import Path

from dse.report import model_table

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"

if __name__ == "__main__":
    PAGE.write_text(model_table.text(), encoding="utf-8")
