import pytest

from streaming.history.output import beginning_of


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", ""),
        (b"now", "now"),
        (b"12345678", "12345678"),
        (b"123456789", "12345678…"),
        ("äöüßäö".encode(), "äöüß…"),
        ("1äöüßäö".encode(), "1äöü…"),
        (b"\xff\x00", "0xff00"),
        (b"a\x1b[31m", "0x611b5b33316d"),
        (b"\x00" * 9, f"0x{'00' * 8}…"),
    ],
)
def test_the_beginning_of_a_payload_is_text_or_hexadecimal(payload: bytes, shown: str) -> None:
    assert beginning_of(payload, 8) == shown
