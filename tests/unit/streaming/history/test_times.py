import pytest

from streaming.history.times import iso_utc, time_of_day


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_790_000_000_123, "2026-09-21T14:13:20.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "+10000-01-01T00:00:00.000Z"),
        ((1 << 63) - 1, "+292278994-08-17T07:12:55.807Z"),
        (-62_167_219_200_001, "-0001-12-31T23:59:59.999Z"),
        (-(1 << 63), "-292275055-05-16T16:47:04.192Z"),
    ],
)
def test_every_time_that_a_record_can_have_has_a_text(milliseconds: int, shown: str) -> None:
    assert iso_utc(milliseconds) == shown


def test_a_time_for_people_has_all_its_digits() -> None:
    assert time_of_day("2026-11-21T10:00:00.123Z") == "2026-11-21 10:00:00.123"
    assert time_of_day("+292278994-08-17T07:12:55.807Z") == "+292278994-08-17 07:12:55.807"
    assert time_of_day(None) == ""
