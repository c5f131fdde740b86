"""What the tests of the protocol on sockets share.

One `inflight up` serves all of them; each has client ids of its own. That something is not sent is shown by what comes next: a
QoS 0 message passes a full window, and a later message comes behind an earlier one.
"""

from collections.abc import Iterator

import pytest

from tests.integration.up.conftest import SharedUp
from tests.integration.up.wire_device import Backend

both_versions = pytest.mark.parametrize("level", [4, 5], ids=["3.1.1", "5"])


@pytest.fixture(scope="module")
def backend(up: SharedUp) -> Iterator[Backend]:
    with Backend(up.kafka) as backend:
        yield backend
