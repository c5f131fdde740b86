"""docs/operate/archive.md says of every column what the table itself says."""

from pathlib import Path

import pytest

from sinks.delta.spec import TableSpec
from streaming.archive.tables import TABLES

DOCUMENT = Path(__file__).parents[4] / "docs" / "operate" / "archive.md"


@pytest.mark.parametrize("spec", TABLES, ids=lambda spec: spec.name)
def test_every_column_is_described_in_the_words_of_the_table(spec: TableSpec) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.split(f"### `{spec.name}`\n")[1].split("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{column.name}` | {column.sql_type} | {column.comment} |" for column in spec.columns]
