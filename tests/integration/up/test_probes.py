"""The processes of `inflight up` answer probes."""

import json
import urllib.request

import pytest

from inflight.local.endpoints import Endpoints
from tests.integration.up.conftest import SharedUp
from tests.support.waiting import DEADLINE_S


@pytest.mark.parametrize("process", ["engine", "gateway"])
@pytest.mark.parametrize("path", ["healthz", "readyz"])
def test_who_has_said_that_it_is_ready_says_so_to_a_probe(up: SharedUp, process: str, path: str) -> None:
    address = Endpoints.read(up.data_dir).metrics[process]
    with urllib.request.urlopen(f"http://{address}/{path}", timeout=DEADLINE_S) as answer:
        assert json.loads(answer.read()) == {"ok": True, "missing": []}
