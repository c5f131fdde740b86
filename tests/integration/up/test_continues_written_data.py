"""Checkpoint and Kafka log of an older version are continued: nothing lost, nothing twice, the same packet ids.

The first archive of fixtures/written.py is that of 0.1.0, on which conftest.py starts `inflight up`. Its engine was stopped
first, so a micro-batch that it had begun is executed again, and records that it never read wait in the log. The newest archive is
that of fixtures/make.py: all was killed at once with devices connected; its state is docs/decisions/0024's format 1.
"""

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from inflight.demo.up import UpProcess
from tests.integration.up.conftest import SharedUp
from tests.integration.up.fixtures.written import FAST_PATH_IDS, NEVER_EXPIRES_S, QUEUED, UNREAD, WRITTEN
from tests.integration.up.wire_device import PUBCOMP, PUBREC, PUBREL, Backend, Received, WireDevice, acknowledgement

OLDEST, NEWEST = "0.1.0", "the newest"
killed = pytest.mark.faults


@dataclass(frozen=True)
class Continued:
    """An `inflight up` that continues from an archive."""

    archive: str
    mqtt: tuple[str, int]
    data_dir: Path
    backend: Backend

    def device(self, client_id: str) -> WireDevice:
        made = WireDevice(self.mqtt, client_id, 5, expiry_s=NEVER_EXPIRES_S)
        assert made.session_present
        return made

    def comes_in_order_and_once(self, client_id: str, payloads: list[bytes], *, dup: bool = False) -> None:
        """dup: the session has sent it on the connection that it had, before it heard that this was gone [MQTT-3.3.1-1]."""
        with self.device(client_id) as device:
            received = [device.receive() for _ in payloads]
            assert [(one.payload, one.dup) for one in received] == [(payload, dup) for payload in payloads]
            self.finish(device, client_id, received)

    def finish(self, device: WireDevice, client_id: str, received: list[Received]) -> None:
        for one in received:
            device.finish(one)
        names = [f"{client_id}/{one.payload.decode()}" for one in received]
        assert self.backend.outcomes(names) == ["delivered"] * len(names)


@pytest.fixture(scope="module", params=[OLDEST, pytest.param(NEWEST, marks=killed)])
def continued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Continued]:
    if request.param == OLDEST:
        up: SharedUp = request.getfixturevalue("up")
        with Backend(up.kafka) as backend:
            yield Continued(OLDEST, up.mqtt, up.data_dir, backend)
        return
    directory = tmp_path_factory.mktemp("continued")
    with tarfile.open(WRITTEN[-1]) as archive:
        archive.extractall(directory, filter="data")
    own = UpProcess(directory / "data", "--set", "session.max_session_expiry_interval=never")
    with own, Backend(own.kafka) as backend:
        yield Continued(NEWEST, own.mqtt, own.data_dir, backend)
    assert own.exit_code == 0


newest_only = pytest.mark.parametrize("continued", [pytest.param(NEWEST, marks=killed)], indirect=True)


@pytest.mark.promise("older-data")
def test_what_was_not_acknowledged_comes_again_under_its_packet_id(continued: Continued) -> None:
    with continued.device("unanswered") as device:
        received = [device.receive(), device.receive()]
        assert [(one.payload, one.qos, one.packet_id, one.dup) for one in received] == [(b"q1", 1, 1, True), (b"q2", 2, 2, True)]
        continued.finish(device, "unanswered", received)


def test_what_was_received_but_not_completed_is_not_sent_again(continued: Continued) -> None:
    with continued.device("received") as device:
        device.expect(acknowledgement(PUBREL, 1))
        device.send(acknowledgement(PUBCOMP, 1))
        assert continued.backend.outcome("received/half") == "delivered"


def test_a_publication_that_awaits_its_release_is_handed_on_once(continued: Continued) -> None:
    """If the data are older than `await_rel_timeout`, the publication's tombstone recognises the repetition."""
    with continued.device("publisher") as device:
        device.publish(b"up-half", qos=2, packet_id=7, dup=True)
        device.expect(acknowledgement(PUBREC, 7))
        device.send(acknowledgement(PUBREL, 7))
        device.expect(acknowledgement(PUBCOMP, 7))
        device.publish(b"up-next", qos=2, packet_id=7)
        device.expect(acknowledgement(PUBREC, 7))
    before = [] if continued.archive == OLDEST else [b"up-1"]
    assert continued.backend.uplink("publisher", b"up-next") == [*before, b"up-half", b"up-next"]


def test_what_waited_in_the_queue_and_in_the_log_comes_in_order(continued: Continued) -> None:
    continued.comes_in_order_and_once("queue", [*QUEUED, *UNREAD])


def test_what_was_delivered_is_not_delivered_again(continued: Continued) -> None:
    if continued.archive == OLDEST:
        continued.comes_in_order_and_once("done", [b"unread"])
        assert continued.backend.outcomes(["done/a", "done/b"]) == ["delivered"] * 2
    else:
        continued.comes_in_order_and_once("done", UNREAD, dup=True)


@newest_only
def test_what_took_the_fast_path_comes_again_before_what_was_unread(continued: Continued) -> None:
    with continued.device("fast") as device:
        received = [device.receive() for _ in range(2 + len(UNREAD))]
        assert [(one.qos, one.dup, one.packet_id >= FAST_PATH_IDS) for one in received[:2]] == [(1, True, True), (2, True, True)]
        # Sent on the connection that it had, too, before the session heard that this was gone [MQTT-3.3.1-1].
        assert [(one.payload, one.dup) for one in received[2:]] == [(payload, True) for payload in UNREAD]
        continued.finish(device, "fast", received)


@newest_only
def test_a_will_is_published_once(continued: Continued) -> None:
    with continued.device("willing"):  # its session learns by it that the connection has ended
        assert continued.backend.uplink("willing", b"bye") == [b"bye"]


@newest_only
def test_a_quarantined_client_stays_so_until_it_is_dropped(continued: Continued) -> None:
    (name,) = continued.backend.send("damaged", b"third")
    assert continued.backend.outcome(name) == "quarantined"
    drop = [sys.executable, "-m", "inflight", "sessions", "drop", "damaged", "--data-dir", str(continued.data_dir)]
    subprocess.run(drop, check=True, capture_output=True)
    with WireDevice(continued.mqtt, "damaged", 5) as begun:
        assert not begun.session_present
