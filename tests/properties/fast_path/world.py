"""One client, its session, two gateways' worth of connections, routers and Kafka between them, in single steps of any order.

Real: the session with its blob, the connections with their bytes, the records, the routers' memory. Simulated, as freely as the
promises of protocol.md (7) allow: when what arrives, is confirmed, fails, is lost or comes twice; who freezes, crashes or
loses a partition; how much of which topic a micro-batch reads, and whether it is executed again; what the device does.

Each part says what can happen to it next (`next_steps`); most can also do, one by one, what is to be done when nothing goes wrong
(`goes_on`). What must hold stands in account.py.
"""

from collections.abc import Iterator
from dataclasses import replace

from tests.properties.fast_path.account import Account
from tests.properties.fast_path.backend import Backend
from tests.properties.fast_path.device import Device
from tests.properties.fast_path.engine import Engine
from tests.properties.fast_path.gateways import Gateways
from tests.properties.fast_path.kafka import Kafka
from tests.properties.fast_path.routers import Router
from tests.properties.fast_path.scenario import Scenario
from tests.properties.fast_path.steps import Shared, Step, do_one


class World:
    """history: what has happened so far. A promise that is broken is an AssertionError or InflightError of any method."""

    def __init__(self, scenario: Scenario) -> None:
        self.history: list[str] = []
        self.shared = Shared(scenario)
        self.kafka = Kafka(self.shared)
        self.account = Account(self.shared, self.kafka)
        self.backend = Backend(self.shared, self.kafka, self.account)
        self.gateways = Gateways(self.shared, self.kafka)
        self.device = Device(self.shared, self.account, self.gateways)
        self.engine = Engine(self.shared, self.kafka, self.account, self.gateways, self.device)
        self.routers = [Router(number, self.shared, self.kafka, self.gateways) for number in range(scenario.routers)]
        self.gateways.newest = lambda client_id: self.routers[0].newest()
        self.engine.may_read_messages = lambda: self.gateways.have_all_offers and not self.routers[0].has_unread
        if scenario.begins_open:
            self._begin_open()
        if scenario.leaves_first:
            self._leave()

    def _begin_open(self) -> None:
        """The device is there, its first message has come, and what follows may take the fast path."""
        self.routers[0].assign()
        self.backend.submit()
        self.device.connect(clean_start=False)
        self._let_all_happen()

    def _leave(self) -> None:
        """The device is served by the fast path and leaves, and a message comes."""
        self.backend.submit()
        self.routers[0].read()
        self._let_all_happen()
        self.device.disconnect()
        self._let_all_happen()
        self.backend.submit()
        self.routers[0].read()

    # --- anything may happen --------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Step]:
        yield from self.backend.next_steps()
        yield from self.engine.next_steps()
        for router in self.routers:
            yield from router.next_steps()
        yield from self.gateways.next_steps()
        yield from self.device.next_steps()
        yield from self.kafka.next_steps()

    def step(self, choice: int) -> None:
        """choice: any number; it selects a step by the steps' weights."""
        do_one(self.next_steps(), choice, self.history)

    # --- everybody behaves ----------------------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Lets everybody behave until all that was sent has its outcome and the path is open for the next message."""
        scenario = self.shared.scenario
        self.shared.faults_left = 0
        self.engine.settings = replace(self.engine.settings, fast_path=True)
        for connection in self.gateways.connections:
            connection.wake()
        for _ in range(400):
            if self.device.is_cut_off:
                self.history.append("the device comes back")
                self.device.leave()
                self.device.connect(clean_start=False, expiry_s=3_600)
            self._let_all_happen()
            if self.device.is_cut_off:  # by what has just happened
                continue
            if not self.account.without_outcome:
                break
            if self.engine.deadline_ms is not None:
                self.engine.timer()
            elif self.device.connection is not None:  # an answer of the device was lost, and is not awaited
                self.device.connection.hang_up()
        assert not self.account.without_outcome, f"no outcome: {self.account.without_outcome}"
        session = scenario.session
        if (
            max(session.delivery_limit, session.crash_limit) < 0 and not session.max_send_rate
        ):  # else one given up may hold a slot
            self._is_open_again()

    def _is_open_again(self) -> None:
        """A message or two by the slow path, and the next one takes the fast path."""
        router, counters = self.routers[0], self.gateways.counters
        taken_before = counters.offers_taken
        for _ in range(3):
            if not router.is_assigned:
                router.assign()
            self.backend.submit(is_plain=True)
            while router.has_unread:
                router.read()
            connection = self.device.connection
            assert connection is not None
            while connection.offers:
                connection.read_offer()
            self._let_all_happen()
            if self.account.refused and self.engine.deadline_ms is not None:
                # What the device has refused for want of room may be gone, and the wait that it asked for not over.
                self.engine.timer()
                self._let_all_happen()
        assert counters.offers_taken > taken_before, "the fast path stays closed"

    def _let_all_happen(self) -> None:
        """Runs until nothing is to be done."""
        while self.engine.repeats() or self.gateways.goes_on() or self.device.goes_on() or self.engine.goes_on():
            pass
