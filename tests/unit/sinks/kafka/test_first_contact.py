import socket
import time

from inflight.local.child_process import free_port
from sinks.kafka.first_contact import first_contact


def test_one_server_that_listens_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert first_contact(f"127.0.0.1:{free_port()}, 127.0.0.1:{port}") is None


def test_each_server_that_does_not_listen_is_named_with_the_reason() -> None:
    one, other = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    assert first_contact(f"{one},{other}") in (
        f"{one}: Connection refused; {other}: Connection refused",
        f"{other}: Connection refused; {one}: Connection refused",
    )


def test_a_server_that_says_nothing_takes_no_longer_than_allowed() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.create_connection(address), socket.socket() as waiting:
            waiting.setblocking(False)
            waiting.connect_ex(address)  # now the kernel lets nobody else in
            began_s = time.monotonic()
            assert first_contact(f"127.0.0.1:{address[1]}", within_s=0.2) == f"127.0.0.1:{address[1]}: no answer within 0.2 s"
            assert time.monotonic() - began_s < 2


def test_an_address_that_is_none_is_told_as_such() -> None:
    why = first_contact("no.such.host.invalid:9092,127.0.0.1:99999")
    assert why is not None
    assert why.count(": ") == 2
