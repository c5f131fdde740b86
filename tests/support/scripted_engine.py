"""An engine that does what a test tells it, for gateways and bridges: it keeps their events and writes numbered commands."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from state.commands import AcceptConnection, CommandBatch, GatewayCommand
from state.events import ClientConnected, GatewayEvent
from state.records.commands import encode_command_batch
from state.records.events import decode_events
from tests.support.waiting import wait_until

T = TypeVar("T")


@dataclass
class Accepting:
    """Holds the engine's answer to ClientConnected; None = no answer."""

    fields: dict[str, Any] | None = field(default_factory=lambda: {"max_awaiting_rel": 100, "send_quota": 32})


class ScriptedEngine:
    """Accepts every connection as `accepting` says. events: (client id, event), in the order of arrival.

    Subclasses call `heard` for each record of the events topic, and `write` appends a record to the commands topic.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, GatewayEvent]] = []
        self.accepting = Accepting()
        self._sequences: dict[int, int] = {}
        self._of: defaultdict[tuple[str, type], list[Any]] = defaultdict(list)

    def write(self, partition: int, client_id: str, value: bytes) -> None:
        """Appends a record to the commands topic."""
        raise NotImplementedError

    def soon(self, action: Callable[[], None]) -> None:
        """Calls the action at once; a subclass on an event loop calls it from the loop."""
        action()

    def heard(self, client_id: str, value: bytes) -> None:
        for event in decode_events(value):
            self._heard(client_id, event)

    def _heard(self, client_id: str, event: Any) -> None:
        fields = self.accepting.fields
        if isinstance(event, ClientConnected) and fields is not None:
            self.soon(lambda: self.answer(client_id, event, AcceptConnection, **fields))
        self.events.append((client_id, event))  # whoever waits for it comes behind the answer
        self._of[client_id, type(event)].append(event)

    def answer(
        self, client_id: str, connected: ClientConnected, kind: type[GatewayCommand], *, number: bool = True, **fields: Any
    ) -> None:
        """A command to one connection. number: the next of the connection; else `sequence` is one of the fields, or 0."""
        values = {"connection_id": connected.connection_id, "partition": connected.commands_partition, "sequence": 0, **fields}
        command = kind(**values)
        if number:
            sequence = self._sequences[command.connection_id] = self._sequences.get(command.connection_id, 0) + 1
            command = msgspec.structs.replace(command, sequence=sequence)
        self.write(command.partition, client_id, encode_command_batch(CommandBatch(client_id=client_id, commands=(command,))))

    def command(self, client_id: str, kind: type[GatewayCommand], *, number: bool = True, **fields: Any) -> None:
        """A command to the client's newest connection."""
        self.answer(client_id, self.of(client_id, ClientConnected)[-1], kind, number=number, **fields)

    def of(self, client_id: str, kind: type[T]) -> list[T]:
        return list(self._of.get((client_id, kind), ()))

    def wait_for(self, client_id: str, kind: type[T], count: int = 1) -> list[T]:
        wait_until(lambda: len(self.of(client_id, kind)) >= count, f"{count} × {kind.__name__} of {client_id}")
        return self.of(client_id, kind)
