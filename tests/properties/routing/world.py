"""Clients that subscribe and publish, their gateways and sessions, and matchers, in single steps of any order.

Real: sessions with their blobs, connections with their bytes, records, tables, matchers, what a router offers. Simulated, as
freely as Kafka and Spark allow: when what arrives, is confirmed, fails, is lost or comes twice, and who dies. The parts of one
client are those of the fast path's world (tests/properties/fast_path). What must hold stands in account.py.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from state.records.routing import RECIPIENT_PREFIX
from tests.properties.fast_path.steps import Shared, Step, do_one
from tests.properties.routing.account import Account
from tests.properties.routing.device import RoutingDevice
from tests.properties.routing.engine import RoutingEngine
from tests.properties.routing.gateways import Router, RoutingGateways
from tests.properties.routing.log import ClientLog, Kafka
from tests.properties.routing.matchers import Group, MatcherProcess
from tests.properties.routing.scenario import CLIENTS, ROUTING, RoutingScenario, scenario_of

_MATCHERS = 2
_MOST_STEPS_TO_REST = 20_000


class RoutingWorld:
    """history: what has happened so far. A promise that is broken is an AssertionError or InflightError of any method."""

    def __init__(self, scenario: RoutingScenario) -> None:
        self.history: list[str] = []
        self.scenario = scenario
        self.shared = Shared(scenario)
        self.account = Account()
        self.kafka = Kafka(self.shared, self.account)
        self.group = Group(len(self.kafka.sources))
        self.matchers = [
            MatcherProcess(number, self.shared, scenario, self.kafka, self.group, self.account) for number in range(_MATCHERS)
        ]
        clients = CLIENTS[: scenario.clients]
        self.logs = {client: ClientLog(client, self.shared, self.kafka) for client in clients}
        self.gateways = {client: RoutingGateways(self.shared, log, self.matchers) for client, log in self.logs.items()}
        self.devices = {
            client: RoutingDevice(client, self.shared, scenario, self.account, self.gateways[client]) for client in clients
        }
        self.engines = {
            client: RoutingEngine(
                self.shared, self.kafka, self.logs[client], self.account, self.gateways[client], self.devices[client]
            )
            for client in clients
        }
        self.router = Router(self.shared, self.kafka, self.gateways)
        for gateways in self.gateways.values():
            gateways.read_to = self.router.read_to
        for matcher in self.matchers:
            matcher.listener = lambda client_id, process: self.gateways[client_id].lower_list_read(process)
        if scenario.begins_open:
            for device in self.devices.values():
                device.connect(clean_start=False)
            self._let_all_happen()

    # --- anything may happen --------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Step]:
        for client, engine in self.engines.items():
            for step in engine.next_steps():
                yield step._replace(name=f"{client}: {step.name}")
            for step in self.gateways[client].next_steps():
                yield step._replace(name=f"{client}: {step.name}")
            yield from self.devices[client].next_steps()
            yield from self.logs[client].next_steps()
        for matcher in self.matchers:
            yield from matcher.next_steps()
        yield from self.router.next_steps()
        yield from self.kafka.next_steps()
        if len(self.account.publications) < 30:
            yield Step(3, "a backend publishes", self._publish)
            for client in self.engines if self.scenario.named else ():
                yield Step(self.scenario.named, f"a backend sends to {client}", lambda client=client: self._send(client))

    def step(self, choice: int) -> None:
        """choice: any number; it selects a step by the steps' weights."""
        do_one(self.next_steps(), choice, self.history)

    def _publish(self) -> None:
        number, topics = len(self.account.publications), self.scenario.topics
        topic, qos = topics[number % len(topics)], self.scenario.qos[number % len(self.scenario.qos)]
        name = self.account.published("backend", topic, qos, None)
        headers: list[tuple[str, bytes | None]] = [("mqtt-topic", topic.encode()), ("mqtt-qos", b"%d" % qos)]
        self.kafka.publish(ROUTING.publications_topic, b"key", name.encode(), headers)

    def _send(self, client: str) -> None:
        qos = self.scenario.qos[len(self.account.publications) % len(self.scenario.qos)]
        name = self.account.addressed(client, qos)
        headers: list[tuple[str, bytes | None]] = [
            ("mqtt-topic", b"own"),
            ("mqtt-qos", b"%d" % qos),
            ("message-id", name.encode()),
        ]
        self.kafka.messages.append(None, name.encode(), [*headers, (RECIPIENT_PREFIX + client, b"")])

    # --- everybody behaves ----------------------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Lets everybody behave until all that has to be received was received."""
        self.shared.faults_left = 0
        for gateways in self.gateways.values():
            for connection in gateways.connections:
                connection.wake()
        missing: list[str] = []
        for _ in range(60):
            for device in self.devices.values():
                if device.is_cut_off:
                    self.history.append(f"{device.client_id} comes back")
                    device.leave()
                    device.connect(clean_start=False)
            self._let_all_happen()
            if any(device.is_cut_off for device in self.devices.values()):
                continue
            missing = self.account.missing()
            if not missing:
                return
            for client, device in self.devices.items():
                if self.engines[client].deadline_ms is not None:
                    self.engines[client].timer()
                elif device.connection is not None:  # an answer of the device was lost, and is not awaited
                    device.connection.hang_up()
        assert not missing, f"missing: {missing}"

    def _let_all_happen(self) -> None:
        """Runs until nothing is to be done."""
        for _ in range(_MOST_STEPS_TO_REST):
            if not any(part() for part in self._parts()):
                return
        raise AssertionError("it does not come to rest")

    def _parts(self) -> Iterator[object]:
        for client, engine in self.engines.items():
            yield engine.repeats
            yield self.gateways[client].goes_on
            yield self.devices[client].goes_on
            yield engine.goes_on
        for matcher in self.matchers:
            yield matcher.goes_on


def run_history(number: int, choices: list[int], **changed: Any) -> RoutingWorld:
    """Runs a history; raises AssertionError if a promise is broken. changed: fields of the scenario."""
    world = RoutingWorld(replace(scenario_of(number), **changed))
    for choice in choices:
        world.step(choice)
    world.come_to_rest()
    return world


def random_choices(number: int, count: int) -> list[int]:
    generator = random.Random(-1 - number)
    return [generator.randrange(10_000) for _ in range(count)]
