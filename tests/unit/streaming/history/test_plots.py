from xml.etree import ElementTree

import pytest

from streaming.history.plots import BOTTOM, LEFT, MAX_READINGS, MISSING, RIGHT, TOP, ceiling, legend, plot, short, svg


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


def test_a_reading_has_the_time_and_the_value_of_each_line() -> None:
    series = [("a", [(3_600.0, 1.5), (3_630.0, 2.0)]), ("b", [(3_630.0, 1_234.0)])]
    first, second = plot("t", "u", series, until_s=3_650.0, window_s=60.0).readings
    assert (first.at_text, first.values) == ("01:00:00", (("a", "1.5"), ("b", MISSING)))
    assert (second.at_text, second.values) == ("01:00:30", (("a", "2"), ("b", "1.23k")))
    days = plot("t", "u", [("a", [(3_600.0, 1.5)])], until_s=86_400.0 * 3, window_s=86_400.0 * 3)
    assert days.readings[0].at_text == "1970-01-01 01:00:00", "in a plot of days the time alone says little"


def test_each_moment_belongs_to_the_nearest_reading() -> None:
    drawn = plot("t", "u", [("a", [(50.0, 1.0), (60.0, 1.0), (90.0, 1.0)])], until_s=100.0, window_s=100.0, max_gap_s=20.0)
    scale = (RIGHT - LEFT) / 100
    spans = [((part.x - LEFT) / scale, (part.x + part.width - LEFT) / scale) for part in drawn.readings]
    expected = [(40.0, 55.0), (55.0, 70.0), (80.0, 100.0)]
    assert [value for span in spans for value in span] == pytest.approx([value for span in expected for value in span], abs=0.1)


def test_a_plot_of_many_points_has_few_readings() -> None:
    points = [(float(second), float(second)) for second in range(1, 3_601)]
    readings = plot("t", "u", [("a", points), ("b", points)], until_s=3_600.0, window_s=3_600.0).readings
    assert MAX_READINGS / 2 < len(readings) <= MAX_READINGS
    assert readings[-1].values == (("a", "3.6k"), ("b", "3.6k")), "the newest is among them"


@pytest.mark.parametrize(("value", "above"), [(0, 1), (0.03, 0.05), (1, 1), (1.01, 2), (3, 5), (7, 10), (101, 200)])
def test_the_scale_ends_at_a_round_number(value: float, above: float) -> None:
    assert ceiling(value) == pytest.approx(above)


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0, 0.1234, 12.34, 1_234, 2_500_000)] == ["0", "0.123", "12.3", "1.23k", "2.5M"]


def test_a_drawing_is_xml_whatever_the_lines_are_called() -> None:
    drawn = plot("a<b", "u", [("<i>&\x1b", [(50.0, 1.0), (90.0, 2.0)])], until_s=100.0, window_s=100.0, max_gap_s=50.0)
    svg_element, list_element = ElementTree.fromstring(svg(drawn)), ElementTree.fromstring(legend(drawn))
    assert len(svg_element.findall("polyline")) == 1
    assert "".join(list_element.itertext()).split() == ["<i>&\\x1b", "2"]
    assert svg_element.get("aria-label") == "a<b"


def test_a_drawing_without_lines_says_so() -> None:
    assert "nothing measured yet" in svg(plot("t", "u", [], until_s=100.0, window_s=60.0))
