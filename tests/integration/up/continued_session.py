"""What every continued data directory has to do, whoever wrote it."""

from tests.integration.up.fixtures.written import NEVER_EXPIRES_S
from tests.integration.up.wire_device import PUBCOMP, PUBREC, PUBREL, Backend, Received, WireDevice, acknowledgement


def device(mqtt: tuple[str, int], client_id: str) -> WireDevice:
    made = WireDevice(mqtt, client_id, 5, expiry_s=NEVER_EXPIRES_S)
    assert made.session_present
    return made


def comes_again_with_dup_and_the_same_packet_ids(mqtt: tuple[str, int], backend: Backend) -> None:
    with device(mqtt, "unanswered") as again:
        received = [again.receive(), again.receive()]
        assert [(one.payload, one.qos, one.packet_id, one.dup) for one in received] == [
            (b"q1", 1, 1, True),
            (b"q2", 2, 2, True),
        ]
        finish(again, received)
        assert backend.outcomes(["unanswered/q1", "unanswered/q2"]) == ["delivered", "delivered"]


def is_released_and_not_sent_again(mqtt: tuple[str, int], backend: Backend) -> None:
    with device(mqtt, "received") as again:
        again.expect(acknowledgement(PUBREL, 1))
        again.send(acknowledgement(PUBCOMP, 1))
        assert backend.outcome("received/half") == "delivered"


def is_known_and_handed_on_once(mqtt: tuple[str, int], backend: Backend, *, published: list[bytes]) -> None:
    """Once the data are older than `await_rel_timeout`, by its tombstone. published: all that the client has, in order."""
    with device(mqtt, "publisher") as again:
        again.publish(b"up-half", qos=2, packet_id=7, dup=True)
        again.expect(acknowledgement(PUBREC, 7))
        again.send(acknowledgement(PUBREL, 7))
        again.expect(acknowledgement(PUBCOMP, 7))
        again.publish(b"up-next", qos=2, packet_id=7)
        again.expect(acknowledgement(PUBREC, 7))
    assert backend.uplink("publisher", b"up-next") == published


def comes_in_order_and_once(
    mqtt: tuple[str, int], backend: Backend, client_id: str, payloads: list[bytes], *, dup: bool = False
) -> None:
    """dup: the session has sent it on the connection that it had, before it heard that this was gone [MQTT-3.3.1-1]."""
    with device(mqtt, client_id) as again:
        received = [again.receive() for _ in payloads]
        assert [(one.payload, one.dup) for one in received] == [(payload, dup) for payload in payloads]
        finish(again, received)
    names = [f"{client_id}/{payload.decode()}" for payload in payloads]
    assert backend.outcomes(names) == ["delivered"] * len(names)


def finish(again: WireDevice, received: list[Received]) -> None:
    for one in received:
        again.finish(one)
