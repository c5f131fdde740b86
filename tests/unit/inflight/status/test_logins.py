import subprocess
import sys
from pathlib import Path

import pytest

from inflight.status.logins import last_refused_login
from tests.support.waiting import DEADLINE_S

PROGRAM = """
import structlog
from collections import Counter
from inflight.cli.logs import configure_logging
from sinks.log_throttle import RefusalLog

configure_logging(json={json}, process={process})
log = RefusalLog(Counter(), structlog.get_logger().warning, "login_refused", "more_logins_refused", label="reason")
log.refused("bad_credentials", "10.0.0.1", detail="wrong password", client_id="gate 1\\u202e", username="u")
log.refused("not_allowed", "10.0.0.2", detail="", client_id="gate 1\\u202e", username="u reason=forged")
log.refused("bad_credentials", "10.0.0.3", detail="x", client_id="gate-2", username="client_id=gate 1 detail= reason=forged")
"""


@pytest.mark.processes
@pytest.mark.parametrize(("json", "process"), [(False, None), (False, 2), (True, None)])
def test_the_newest_refusal_of_a_client_is_found(tmp_path: Path, json: bool, process: int | None) -> None:
    with (tmp_path / "gateway.log").open("wb") as log:
        program = PROGRAM.format(json=json, process=process)
        subprocess.run([sys.executable, "-c", program], stderr=log, timeout=DEADLINE_S, check=True)
    found = last_refused_login([tmp_path / "missing.log", tmp_path / "gateway.log"], "gate 1\u202e")
    assert found is not None
    assert (found.reason, found.address, len(found.time)) == ("not_allowed", "10.0.0.2", len("2026-11-21T10:00:00.123Z"))
    other = last_refused_login([tmp_path / "gateway.log"], "gate-2")
    assert other is not None
    assert (other.detail, other.address) == ("x", "10.0.0.3")
    assert last_refused_login([tmp_path / "gateway.log"], "gate-3") is None
