"""What the newest archive of fixtures/make.py has, checkpoint and Kafka log, is continued: nothing lost, nothing twice.

All was killed at once, with devices connected; the state is that of docs/decisions/0024's format 1. test_continues_0_1_0.py does
the same with an older archive.
"""

import subprocess
import sys
import tarfile
from collections.abc import Iterator

import pytest

from inflight.demo.up import UpProcess
from tests.integration.up.continued_session import (
    comes_again_with_dup_and_the_same_packet_ids,
    comes_in_order_and_once,
    device,
    finish,
    is_known_and_handed_on_once,
    is_released_and_not_sent_again,
)
from tests.integration.up.fixtures.written import FAST_PATH_IDS, QUEUED, UNREAD, WRITTEN
from tests.integration.up.wire_device import Backend, WireDevice

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    directory = tmp_path_factory.mktemp("continued")
    with tarfile.open(WRITTEN[-1]) as archive:
        archive.extractall(directory, filter="data")
    with UpProcess(directory / "data", "--set", "session.max_session_expiry_interval=never") as up:
        yield up
    assert up.exit_code == 0


@pytest.fixture(scope="module")
def backend(continued: UpProcess) -> Iterator[Backend]:
    with Backend(continued.kafka) as made:
        yield made


def test_what_was_not_acknowledged_comes_again_with_dup_and_the_same_packet_ids(continued: UpProcess, backend: Backend) -> None:
    comes_again_with_dup_and_the_same_packet_ids(continued.mqtt, backend)


def test_what_the_gateway_had_sent_by_the_fast_path_comes_again_before_what_no_engine_has_read(
    continued: UpProcess, backend: Backend
) -> None:
    with device(continued.mqtt, "fast") as again:
        received = [again.receive() for _ in range(2 + len(UNREAD))]
        assert [(one.qos, one.dup, one.packet_id >= FAST_PATH_IDS) for one in received[:2]] == [(1, True, True), (2, True, True)]
        # Sent on the connection that it had, too, before the session heard that this was gone [MQTT-3.3.1-1].
        assert [(one.payload, one.dup) for one in received[2:]] == [(payload, True) for payload in UNREAD]
        finish(again, received)
        names = [f"fast/{one.payload.decode()}" for one in received]
        assert backend.outcomes(names) == ["delivered"] * len(names)


def test_what_was_received_but_not_completed_is_released_and_not_sent_again(continued: UpProcess, backend: Backend) -> None:
    is_released_and_not_sent_again(continued.mqtt, backend)


def test_a_publication_that_awaits_its_release_is_known_and_handed_on_once(continued: UpProcess, backend: Backend) -> None:
    is_known_and_handed_on_once(continued.mqtt, backend, published=[b"up-1", b"up-half", b"up-next"])


def test_what_waited_in_the_queue_and_in_the_log_comes_in_order_and_once(continued: UpProcess, backend: Backend) -> None:
    comes_in_order_and_once(continued.mqtt, backend, "queue", [*QUEUED, *UNREAD])
    comes_in_order_and_once(continued.mqtt, backend, "done", UNREAD, dup=True)


def test_a_will_is_published_once(continued: UpProcess, backend: Backend) -> None:
    with device(continued.mqtt, "willing"):  # its session learns by it that the connection has ended
        assert backend.uplink("willing", b"bye") == [b"bye"]


def test_a_quarantined_client_stays_so_until_it_is_dropped(continued: UpProcess, backend: Backend) -> None:
    (name,) = backend.send("damaged", b"third")
    assert backend.outcome(name) == "quarantined"
    drop = [sys.executable, "-m", "inflight", "sessions", "drop", "damaged", "--data-dir", str(continued.data_dir)]
    subprocess.run(drop, check=True, capture_output=True)
    with WireDevice(continued.mqtt, "damaged", 5) as begun:
        assert not begun.session_present
