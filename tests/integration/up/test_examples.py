"""The example of docs/guides/topics.md, as written. tests/integration/up/test_backend.py runs those of a backend."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.up.conftest import SharedUp
from tests.support.waiting import DEADLINE_S

EXAMPLES = Path(__file__).parents[3] / "examples"

pytestmark = pytest.mark.integration


@pytest.mark.servers
@pytest.mark.promise("examples")
def test_the_example_of_retained_and_shared_runs(up: SharedUp) -> None:
    host, port = up.mqtt
    command = [sys.executable, EXAMPLES / "retained_and_shared.py", host, str(port)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert run.stdout.splitlines() == ["the sign says open", "the tills have 10 orders, each once: True"], run.stderr
