import errno
import socket

import pytest

from sinks.mqtt.listeners.listening import listening_sockets


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        pytest.param("::", ("127.0.0.1", "::1"), marks=needs_ipv6),
        pytest.param("localhost", ("127.0.0.1", "::1"), marks=needs_ipv6),
        pytest.param("::1", ("::1",), marks=needs_ipv6),
        ("0.0.0.0", ("127.0.0.1",)),
        ("127.0.0.1", ("127.0.0.1",)),
    ],
)
@pytest.mark.parametrize("shares_port", [False, True])
def test_every_address_of_a_host_has_the_same_port(host: str, reached: tuple[str, ...], shares_port: bool) -> None:
    opened = listening_sockets(host, 0, shares_port=shares_port)
    try:
        ports = {one.getsockname()[1] for one in opened}
        assert len(ports) == 1
        for address in reached:
            device = socket.create_connection((address, *ports), timeout=10)
            with device, next(one for one in opened if one.family == device.family).accept()[0] as accepted:
                assert accepted.getpeername()[0] == address, "an address of IPv4 is no address of IPv6"
    finally:
        for one in opened:
            one.close()


def test_an_address_that_the_machine_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def without_ipv6(address: tuple[str, int], *, family: int, **others: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(address, family=family, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    for host in ("localhost", "::"):
        (only,) = listening_sockets(host, 0, shares_port=False)
        assert only.family == socket.AF_INET
        only.close()
    with pytest.raises(OSError, match="Cannot assign requested address") as caught:
        listening_sockets("::1", 0, shares_port=False)
    assert caught.value.filename == "::1:0"


@needs_ipv6
def test_a_free_port_is_free_on_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    create, taken = socket.create_server, []

    def taking_the_first(address: tuple[str, int], *, family: int, **others: object) -> socket.socket:
        if family == socket.AF_INET6 and not taken:
            taken.append(address[1])
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return create(address, family=family, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_server", taking_the_first)
    opened = listening_sockets("localhost", 0, shares_port=False)
    assert [one.getsockname()[1] for one in opened] == [opened[0].getsockname()[1]] * 2
    for one in opened:
        one.close()


@needs_ipv6
def test_a_port_that_one_address_cannot_have_is_named() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use") as caught:
            listening_sockets("localhost", port, shares_port=False)
        assert caught.value.filename == f"localhost:{port}"
        socket.create_server(("127.0.0.1", port)).close()
