"""docs/operate/archive.md says of every column what the table itself says."""

from pathlib import Path

import pytest

from sinks.delta.spec import TableSpec
from streaming.archive.tables import TABLES, bound_tables
from streaming.config.settings import Settings

DOCUMENT = Path(__file__).parents[4] / "docs" / "operate" / "archive.md"


@pytest.mark.parametrize("spec", TABLES, ids=lambda spec: spec.name)
def test_every_column_is_described_in_the_words_of_the_table(spec: TableSpec) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.split(f"### `{spec.name}`\n")[1].split("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{column.name}` | {column.sql_type} | {column.comment} |" for column in spec.columns]


def test_a_binding_to_a_table_makes_one_with_the_columns_of_dead_letters() -> None:
    bindings = [{"to": "table:parking"}, {"to": "table:dead_letters"}, {"to": "client:c"}, {"to": "table:parking", "key": "k"}]
    settings = Settings(exchanges=[{"name": "x", "type": "topic", "bindings": bindings}])
    (spec,) = bound_tables(settings)
    assert spec.name == "parking"
    assert spec.columns == TABLES[1].columns
