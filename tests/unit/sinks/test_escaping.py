import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.escaping import escaped, escaped_json

TITLE = "\x1b]0;owned\x07"
"""Sets the title of a terminal's window."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plant:key:7 äöü 🔑", "plant:key:7 äöü 🔑"),
        (TITLE, r"\x1b]0;owned\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("a\u202eb", r"a\u202eb"),
        ("a\u2028b\u2029", r"a\u2028b\u2029"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_text_of_several_lines_keeps_its_lines() -> None:
    assert escaped("one\ntwo\x1b[2J", keep="\n") == "one\ntwo\\x1b[2J"


@given(st.text())
def test_escaped_text_is_printable_and_escaped_once(text: str) -> None:
    assert escaped(text).isprintable()
    assert escaped(escaped(text)) == escaped(text)


@given(st.text(st.characters(codec="utf-8")))
def test_escaped_json_is_printable_and_says_the_same(text: str) -> None:
    document = escaped_json(json.dumps({"id": text}, ensure_ascii=False))
    assert document.isprintable()
    assert json.loads(document) == {"id": text}
