"""Runs the generator alone: its publisher and its devices, and between them a minimal broker.

    python -m bench.contestants.sink --port 1883

It accepts every client, forwards each publication to the subscribers of its topic, and answers at once. It stores nothing, waits
for no answer and resends nothing, so it is no contestant. It shows figures that the generator can reach on this machine. If a
contestant comes near to them, the generator may be its limit. The sink is Python, so others may need less CPU for the same.
"""

import argparse
import asyncio
import platform
import sys
from typing import ClassVar

from bench.contestants.broker import Broker
from bench.devices import PUBLISH, PUBREL, Connection, publish_packet, run_fast

_CONNECT, _PUBREC, _SUBSCRIBE, _DISCONNECT = 0x10, 0x50, 0x80, 0xE0


class Sink(Broker):
    """The sink as a contestant."""

    title: ClassVar[str] = "generator alone"
    keeps_sessions: ClassVar[bool] = False

    @staticmethod
    def version() -> str:
        return f"Python {platform.python_version()}"

    def start(self) -> None:
        host, port = self.mqtt
        self.run("sink", [sys.executable, "-m", "bench.contestants.sink", "--host", host, "--port", str(port)])


class Client(Connection):
    """A client of the sink. routes: the subscribers, by topic, or by the part before a `#`."""

    __slots__ = ("_last_id", "_routes")

    def __init__(self, routes: dict[bytes, "Client"]) -> None:
        super().__init__()
        self._routes = routes
        self._last_id = 0

    def hand_on(self, topic: bytes, payload: bytes, qos: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._last_id = self._last_id % 0xFFFF + 1
            self._transport.write(publish_packet(topic, payload, qos=qos, packet_id=self._last_id))

    def _packet(self, buffer: bytes, start: int, body: int, end: int, answers: bytearray) -> None:
        kind = buffer[start] & 0xF0
        if kind == PUBLISH:
            qos = buffer[start] >> 1 & 3
            name_end = body + 2 + (buffer[body] << 8 | buffer[body + 1])
            topic = buffer[body + 2 : name_end]
            answers += b"\x40\x02" if qos == 1 else b"\x50\x02"
            answers += buffer[name_end : name_end + 2]
            subscriber = self._routes.get(topic) or self._routes.get(topic[: topic.rfind(b"/") + 1])
            if subscriber is not None:
                subscriber.hand_on(topic, buffer[name_end + 2 : end], qos)
        elif kind in (PUBREL, _PUBREC):
            answers += b"\x70\x02" if kind == PUBREL else b"\x62\x02"
            answers += buffer[body : body + 2]
        elif kind == _CONNECT:
            answers += b"\x20\x02\x00\x00"
        elif kind == _SUBSCRIBE:
            name_end = body + 4 + (buffer[body + 2] << 8 | buffer[body + 3])
            self._routes[buffer[body + 4 : name_end].removesuffix(b"#")] = self
            answers += b"\x90\x03"
            answers += buffer[body : body + 2]
            answers.append(buffer[name_end])
        elif kind == _DISCONNECT and self._transport is not None:
            self._transport.close()


async def run(host: str, port: int) -> None:
    """Runs until it is killed."""
    routes: dict[bytes, Client] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Client(routes), host, port, backlog=1_000)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    arguments = parser.parse_args()
    run_fast(run(arguments.host, arguments.port))


if __name__ == "__main__":
    main()
