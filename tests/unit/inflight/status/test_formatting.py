from inflight.status.measurements import format_age


def test_ages_are_short() -> None:
    assert [format_age(seconds) for seconds in (-1, 0.4, 119, 120, 7_199, 7_200, 172_800)] == [
        "0 s",
        "0 s",
        "119 s",
        "2 min",
        "120 min",
        "2.0 h",
        "2.0 d",
    ]
