"""`inflight sessions purge` on a running system."""

import json
import subprocess
import sys

import pytest

from streaming.history.operator_requests import this_user
from tests.integration.up.conftest import SharedUp
from tests.integration.up.topics_of_up import await_gone
from tests.integration.up.wire_device import Backend, WireDevice

pytestmark = pytest.mark.faults


@pytest.mark.promise("operator-request")
def test_only_sessions_of_absent_clients_are_purged_with_outcomes(up: SharedUp) -> None:
    with Backend(up.kafka) as backend, WireDevice(up.mqtt, "purged-here", 5) as here:
        for name in ("purged-away", "kept-away"):
            WireDevice(up.mqtt, name, 5).socket.close()
            await_gone(up, name)
        waiting = backend.send("purged-away", b"1", b"2", qos=2)
        kept = backend.send("kept-away", b"1")
        backend.outcomes(backend.send("purged-here", b"0", qos=0))  # all of the above is in the sessions by now
        command = [sys.executable, "-m", "inflight", "sessions", "purge", "--where", "client_id LIKE 'purged-%'", "--yes"]
        said = subprocess.run(
            [*command, "--data-dir", str(up.data_dir)], capture_output=True, text=True, timeout=200, check=False
        )
        assert said.returncode == 0, said.stderr
        assert said.stdout == "purged-away\n"
        assert "1 requested" in said.stderr
        assert backend.outcomes(waiting) == ["session_ended"] * 2
        assert who_asked(up, "purged-away") == [f"purge by {this_user()}: where client_id LIKE 'purged-%'"]
        assert here.receive().payload == b"0"
        backend.send("purged-here", b"3")
        assert here.receive().payload == b"3"
        with WireDevice(up.mqtt, "purged-away", 5) as back:
            assert not back.session_present
        with WireDevice(up.mqtt, "kept-away", 5) as back:
            assert back.session_present
            back.finish(back.receive())
        assert backend.outcomes(kept) == ["delivered"]


def who_asked(up: SharedUp, client_id: str) -> list[str]:
    """Returns what the ledger says that operators have asked for, by SQL."""
    question = f"SELECT detail FROM ledger WHERE transition = 'operator_request' AND client_id = '{client_id}'"
    command = [sys.executable, "-m", "inflight", "sql", question, "--json", "--data-dir", str(up.data_dir)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    return [json.loads(line)["detail"] for line in said.stdout.splitlines()]
