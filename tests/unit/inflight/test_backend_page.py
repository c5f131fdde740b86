"""docs/guides/backend.md and tracing.md show the very lines of examples/, which tests/integration/up runs."""

import re
from pathlib import Path

import pytest

import inflight

ROOT = Path(__file__).parents[3]
PAGES = ("backend.md", "tracing.md")
EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))]


def blocks_of(page: str) -> list[str]:
    text = (ROOT / "docs" / "guides" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks_of(page)])
def test_a_block_of_the_page_stands_in_an_example(block: str) -> None:
    assert any(block in example for example in EXAMPLES)


@pytest.mark.parametrize(
    "name", ["Producer", "AsyncProducer", "DeliveryFuture", "Uplink", "Receipts", "Receipt", "RequestFailed"]
)
def test_the_names_of_the_page_are_imported_from_inflight(name: str) -> None:
    assert getattr(inflight, name).__name__ == name


def test_a_name_that_is_nowhere_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Postman'"):
        _ = inflight.Postman  # type: ignore[attr-defined]
