import pytest

from sinks.host.command_order import CommandOrder, CommandStatus

N, R, O = CommandStatus.NEW, CommandStatus.REPEATED, CommandStatus.BUILD_MISMATCH  # noqa: E741


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        pytest.param("1a 2a 3a", [N, N, N], id="each once"),
        pytest.param("1a 2a 1a 2a 3a", [N, N, R, R, N], id="executed again by the same code"),
        pytest.param("1a 2a 3b 4b", [N, N, N, N], id="a new version after a commit"),
        pytest.param("1a 2a 2b", [N, N, O], id="executed again by another version"),
        pytest.param("1a 2a 3a 2b", [N, N, N, O], id="in the middle of what was said"),
        pytest.param("1a 2b 2a", [N, N, O], id="and back to the old version"),
        pytest.param("1 2 2a", [N, N, O], id="0.1.0 did not say what it was"),
        pytest.param("1a 2a 3b 1a 2a 3b", [N, N, N, R, R, R], id="the log is read again after a new version"),
        pytest.param("1 2 2", [N, N, R], id="0.1.0 and 0.1.0"),
    ],
)
@pytest.mark.promise("another-build")
def test_the_order_of(commands: str, expected: list[CommandStatus]) -> None:
    order = CommandOrder()
    assert [order.status_of(int(command[0]), command[1:]) for command in commands.split()] == expected
