import socket
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from sinks.mqtt.arrival import Arrival, arrival_of
from tests.support.waiting import wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is read as Linux has it")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(the device's side, ours)"""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        device = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
        with device, ours:
            yield device, ours


@linux
def test_bytes_age_in_the_kernel_whether_or_not_they_are_read(pair: tuple[socket.socket, socket.socket]) -> None:
    device, ours = pair
    device.send(b"x")
    wait_until(lambda: arrival_of(ours).waited_ms >= 20, "the byte has waited")
    ours.recv(1)
    assert arrival_of(ours).waited_ms >= 20
    wait_until(lambda: device.send(b"x") and arrival_of(ours).waited_ms < 20, "a new byte, seen before it is old")


@linux
def test_a_device_that_has_closed_its_side_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    device, ours = pair
    device.send(b"x")
    assert not arrival_of(ours).peer_is_gone
    device.close()
    wait_until(lambda: arrival_of(ours).peer_is_gone, "its FIN is there")


@linux
def test_bytes_that_the_device_has_taken_are_counted(pair: tuple[socket.socket, socket.socket]) -> None:
    _, ours = pair
    before = arrival_of(ours).taken_bytes
    ours.send(bytes(1_000))
    wait_until(lambda: arrival_of(ours).taken_bytes == before + 1_000, "they are acknowledged")


def test_without_the_systems_information_nothing_has_waited() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert arrival_of(left) == Arrival()
    assert arrival_of(left) == arrival_of(None) == Arrival()
