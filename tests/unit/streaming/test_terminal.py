import io
import json
import sys
from collections.abc import Callable

import pytest

from streaming.terminal import console, counted, plain, say, write_json, write_table

OUTSIDE = "plant:key:7 [bold]x[/bold] \x1b]0;owned\x07\u202e\u2028"
SHOWN = r"plant:key:7 [bold]x[/bold] \x1b]0;owned\x07\u202e\u2028"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(write: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what is written while standard output is a terminal."""
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        patch.setenv("TERM", "dumb")
        patch.setattr(sys, "stdout", out := Terminal())
        write()
    return out.getvalue()


def test_a_table_shows_ids_as_they_are_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SHOWN in on_a_terminal(lambda: write_table(("client_id", "queued"), [(OUTSIDE, 7)]), monkeypatch)


def test_a_screen_shows_ids_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def write() -> None:
        console().print(plain(OUTSIDE), soft_wrap=True)
        console().print("plant:key:7 [bold]", soft_wrap=True)

    assert on_a_terminal(write, monkeypatch) == f"{SHOWN}\nplant:key:7 [bold]\n"


def test_a_screen_into_a_pipe_folds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(plain("x" * 5_000))
    assert capsys.readouterr().out == "x" * 5_000 + "\n"


def test_a_long_cell_is_cut_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_a_terminal(lambda: write_table(("id", "count"), [("x" * 20_000, 1), ("a  b", 12)]), monkeypatch)
    assert shown.count("x") == 119
    assert "…" in shown


def test_a_row_into_a_pipe_is_one_whole_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("client_id", "count", "detail"), [("x" * 20_000, 1, "one\ntwo"), ("a  b", 12, None), (OUTSIDE, None, True)])
    head, long, short, outside = capsys.readouterr().out.splitlines()
    assert head.split() == ["client", "id", "count", "detail"]
    assert long.split() == ["x" * 20_000, "1", r"one\ntwo"]
    assert short.startswith("a  b")
    assert short.split() == ["a", "b", "12"]
    assert outside.startswith(SHOWN)
    assert outside.endswith("yes")


def test_a_table_without_rows_into_a_pipe_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("client_id", "count"), [])
    assert capsys.readouterr().out == "client id  count\n"


def test_columns_that_are_typed_again_keep_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("client_id", "count_star()"), [], keeps_names=True)
    assert capsys.readouterr().out == "client_id  count_star()\n"


def test_one_is_counted_in_the_singular() -> None:
    assert [counted(number, "client") for number in (0, 1, 2_000)] == ["0 clients", "1 client", "2,000 clients"]
    assert counted(2, "micro-batch", "micro-batches") == "2 micro-batches"


def test_json_is_exact_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    write_json([{"client_id": OUTSIDE}, {"client_id": "ü"}])
    first, second = capsys.readouterr().out.split("\n")[:2]
    assert first.isprintable()
    assert json.loads(first)["client_id"] == OUTSIDE
    assert second == '{"client_id": "ü"}'


def test_a_line_is_escaped_and_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"inflight: {OUTSIDE}\nnext", err=True)
    assert capsys.readouterr().err == f"inflight: {SHOWN}\nnext\n"
