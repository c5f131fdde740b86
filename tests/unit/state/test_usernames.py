from state.commands import ForwardPublication
from state.events import ClientConnected, ConnectionLost, Event, PublishReceived
from state.model import Will
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings


def forwarded(*events: Event) -> list[str]:
    """The user of each publication; between two events the session is stored and read."""
    session, users = Session(client_id="c", settings=SessionSettings()), []
    for now_ms, event in enumerate(events, start=1_000):
        session = decode_session(encode_session(session), client_id="c", settings=SessionSettings())
        users += [
            command.username for command in session.handle_all([event], now_ms=now_ms) if isinstance(command, ForwardPublication)
        ]
    return users


def connected(will: Will | None = None) -> ClientConnected:
    return ClientConnected(connection_id=7, commands_partition=0, will=will)


def test_a_publication_of_qos_2_keeps_its_user() -> None:
    said = PublishReceived(connection_id=7, packet_id=1, topic="t", payload=b"", publication_id="p", username="ada")
    assert forwarded(connected(), said) == ["ada"]


def test_a_will_keeps_its_user() -> None:
    assert forwarded(connected(Will(topic="t", payload=b"", username="ada")), ConnectionLost(connection_id=7)) == ["ada"]
    assert forwarded(connected(Will(topic="t", payload=b"")), ConnectionLost(connection_id=7)) == [""]
