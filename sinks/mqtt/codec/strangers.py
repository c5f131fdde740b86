"""Names the protocol of a first packet that is no CONNECT. It is for the log: mostly a listener is configured wrongly."""

from typing import Final

_SIGNS: Final = (
    (b"PROXY ", "a PROXY protocol v1 header; add the load balancer to `proxies` of this listener"),
    (b"\r\n\r\n\0\r\nQUIT\n", "a PROXY protocol v2 header; add the load balancer to `proxies` of this listener"),
    (b"\x16\x03", "a TLS handshake; this listener has no tls_certfile"),
)
_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"CONNECT ", b"DELETE ", b"PRI ")


def protocol_of(data: bytes) -> str:
    """Returns what the first bytes of a connection seem to be, and what to do about it."""
    for start, text in _SIGNS:
        if data.startswith(start):
            return text
    if data.startswith(_METHODS):
        return "HTTP; MQTT over WebSocket needs a listener with transport = websocket"
    return "the first packet is not CONNECT [MQTT-3.1.0-1]"
