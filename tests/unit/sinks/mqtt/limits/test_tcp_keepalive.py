import socket

from sinks.mqtt.limits.tcp_keepalive import keep_alive


def test_a_peer_that_has_vanished_is_noticed_after_about_twice_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        keep_alive(listening, 60_000)
        dialled = socket.create_connection(listening.getsockname())
        connection, _ = listening.accept()
    with dialled, connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [connection.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [60, 15, 4]


def test_0_means_that_the_kernel_does_not_look() -> None:
    with socket.socket() as listening:
        for idle_ms in (60_000, 0):
            keep_alive(listening, idle_ms)
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
