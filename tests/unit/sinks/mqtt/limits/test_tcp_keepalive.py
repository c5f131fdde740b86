"""sinks.mqtt.limits.tcp_keepalive"""

import socket

from sinks.mqtt.limits.tcp_keepalive import keep_alive


def test_a_peer_that_has_vanished_is_noticed_after_about_twice_the_time() -> None:
    with socket.socket() as connection:
        keep_alive(connection, 60_000)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [connection.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [60, 15, 4]


def test_0_leaves_the_socket_alone() -> None:
    with socket.socket() as connection:
        keep_alive(connection, 0)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    keep_alive(None, 60_000)
