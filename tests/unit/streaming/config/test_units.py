import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.setting import NEVER_MS
from streaming.config.units import format_duration, format_size, parse_duration_ms, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("30s", 30_000),
        ("500ms", 500),
        ("2h", 7_200_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("250", 250),
        ("1d", 86_400_000),
        ("never", NEVER_MS),
    ],
)
def test_durations_are_written_as_people_do(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("nonsense", ["", "s", "30 x", "-5s", "1s2", True, 1.5, None, "1e3s", "٣s"])
def test_what_is_no_duration_is_refused(nonsense: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(nonsense)


@pytest.mark.parametrize(
    ("text", "size"), [("1MiB", 1 << 20), ("64KiB", 65_536), ("10MB", 10_000_000), ("12", 12), ("0.5KiB", 512), ("3B", 3)]
)
def test_sizes_are_written_as_people_do(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("nonsense", ["", "MiB", "-5", "1.5", "1XB", "1MiB2", True, 1.5, None, "1e3", "٣MiB"])
def test_what_is_no_size_is_refused(nonsense: object) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size_bytes(nonsense)


@given(st.integers(min_value=0, max_value=NEVER_MS))
def test_formatted_durations_read_back(milliseconds: int) -> None:
    assert parse_duration_ms(format_duration(milliseconds)) == milliseconds


@given(st.integers(min_value=0, max_value=1 << 40))
def test_formatted_sizes_read_back(size: int) -> None:
    assert parse_size_bytes(format_size(size)) == size
