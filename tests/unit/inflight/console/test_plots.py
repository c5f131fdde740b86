import pytest

from inflight.console.plots import BOTTOM, LEFT, RIGHT, TOP, ceiling, plot, short


def test_the_newest_moment_is_at_the_right_edge() -> None:
    drawn = plot("t", "u", [("a", [(40.5, 0.0), (50.0, 5.0), (100.0, 1.0)])], until_s=100.0, window_s=60.0, max_gap_s=60.0)
    (line,) = drawn.lines
    first, second, last = (tuple(map(float, point.split(","))) for point in line.segments[0].split())
    assert LEFT < first[0] < second[0] < last[0] == RIGHT
    assert second[1] == TOP
    assert first[1] == BOTTOM
    assert line.last == "1"
    assert [label for _, label in drawn.marks] == ["0", "2.5", "5"]


def test_what_is_older_is_left_out_and_so_is_a_line_without_a_point() -> None:
    drawn = plot("t", "u", [("old", [(1.0, 5.0)]), ("new", [(99.0, 5.0)])], until_s=100.0, window_s=60.0)
    assert [line.name for line in drawn.lines] == ["new"]
    assert plot("t", "u", [], until_s=100.0, window_s=60.0).lines == ()


def test_where_nothing_was_measured_the_line_has_a_hole() -> None:
    drawn = plot("t", "u", [("a", [(10.0, 1.0), (12.0, 1.0), (45.0, 1.0)])], until_s=60.0, window_s=60.0)
    assert [len(piece.split()) for piece in drawn.lines[0].segments] == [2, 2]


@pytest.mark.parametrize(("value", "above"), [(0, 1), (0.03, 0.05), (1, 1), (1.01, 2), (3, 5), (7, 10), (101, 200)])
def test_the_scale_ends_at_a_round_number(value: float, above: float) -> None:
    assert ceiling(value) == pytest.approx(above)


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0, 0.1234, 12.34, 1_234, 2_500_000)] == ["0", "0.123", "12.3", "1.23k", "2.5M"]
