"""Formats measurements for people, on a terminal and on a page."""


def format_age(seconds: float) -> str:
    """Returns `12 s`, `3 min`, `5.2 h` or `3.0 d`."""
    for unit, length_s, places in ("d", 86_400, 1), ("h", 3_600, 1), ("min", 60, 0):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.{places}f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
