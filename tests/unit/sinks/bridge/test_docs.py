"""docs/guides/bridge.md shows the very lines of examples/, which tests/integration/bridge/test_bridge_mosquitto.py runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "guides" / "bridge.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["bridge_device.py", "bridge_device_mqtt311.py", "bridge_device.mjs"])
def test_the_page_shows_the_lines_of_each_example_device(name: str) -> None:
    example = (ROOT / "examples" / name).read_text(encoding="utf-8")
    _, _, after = example.partition("---- the few lines ----\n")
    lines = re.split(r"^(?:#|//) ---- ", after, flags=re.MULTILINE)[0].strip("\n")
    assert len(lines.splitlines()) > 10
    blocks = re.findall(r"^```\w+\n(.*?)\n```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert lines in blocks


def test_the_page_names_only_files_that_exist() -> None:
    named = set(re.findall(r"`((?:examples|tests|streaming|conf)/[\w./]+\.\w+)`", PAGE))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []
