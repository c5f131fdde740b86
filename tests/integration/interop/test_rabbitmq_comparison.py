"""The same dead letters in a real RabbitMQ and in Inflight, compared field by field. What differs on purpose is said here and in
docs/dead_letters.md with the reason.

RabbitMQ is Debian's, started by the test. Inflight is its engine in this process, without Spark and Kafka.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

pika = pytest.importorskip("pika", reason="RabbitMQ's client is not installed: pip install pika")

from state.dead_letters.exchanges import Binding, Exchange, ExchangeType, parse_destination, topic_matches  # noqa: E402
from state.dead_letters.policy import Policy  # noqa: E402
from state.model import Destination  # noqa: E402
from tests.integration.interop.brokers import (  # noqa: E402
    Broker,
    DeadLetterSeen,
    InflightBroker,
    Queue,
    RabbitBroker,
    Setup,
)
from tests.integration.interop.rabbitmq_server import RabbitMq, get, is_installed  # noqa: E402
from tests.scenarios.engine_model import EngineModel  # noqa: E402

pytestmark = [
    pytest.mark.integration,
    pytest.mark.rabbitmq,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not is_installed(), reason="RabbitMQ is not installed: apt-get install rabbitmq-server"),
]

TTL_MS = 150
END = Queue("end", end=True)
Story = Callable[[Broker], list[DeadLetterSeen]]


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    with RabbitMq(tmp_path_factory.mktemp("rabbitmq")) as broker:
        yield broker


@pytest.fixture
def channel(rabbitmq: RabbitMq) -> Iterator["pika.adapters.blocking_connection.BlockingChannel"]:
    channel = rabbitmq.channel()
    yield channel
    channel.connection.close()


@pytest.fixture
def rabbit_with(rabbitmq: RabbitMq) -> Iterator[Callable[[Setup], RabbitBroker]]:
    """RabbitMQ, set up for one story."""
    channel = rabbitmq.channel()
    made: list[RabbitBroker] = []

    def make(setup: Setup) -> RabbitBroker:
        made.append(RabbitBroker(channel, setup))
        return made[-1]

    yield make
    if channel.is_open:
        for broker in made:
            broker.close()
        channel.connection.close()


@pytest.fixture
def compare(rabbit_with: Callable[[Setup], RabbitBroker]) -> Callable[[Setup, Story], list[DeadLetterSeen]]:
    """Runs a story on both, on Inflight once with policies and once with headers of the message; all must see the same."""

    def run(setup: Setup, story: Story) -> list[DeadLetterSeen]:
        rabbit = _times_to_live_of_expired_ones(_older_deaths_sorted(story(rabbit_with(setup))))
        assert rabbit, "the story saw nothing"
        inflight = story(InflightBroker(setup))
        assert _older_deaths_sorted(inflight) == rabbit
        if sum(queue.dlx is not None for queue in setup.queues) == 1:
            assert _older_deaths_sorted(story(InflightBroker(replace(setup, arguments=True)))) == rabbit
        return inflight

    return run


def _older_deaths_sorted(letters: list[DeadLetterSeen]) -> list[DeadLetterSeen]:
    """RabbitMQ 3.10 gets the order of all but the newest death wrong, see below; with two deaths there is nothing to sort."""
    return [replace(letter, deaths=(letter.deaths[0], *sorted(letter.deaths[1:], key=str))) for letter in letters]


def _times_to_live_of_expired_ones(letters: list[DeadLetterSeen]) -> list[DeadLetterSeen]:
    """RabbitMQ says original-expiration whatever a message has died of, see below."""
    return [
        replace(
            letter,
            deaths=tuple(
                death if death.reason == "expired" else replace(death, original_expiration=None) for death in letter.deaths
            ),
        )
        for letter in letters
    ]


def one_exchange(*queues: Queue, kind: str = "fanout", key: str = "") -> Setup:
    """Queue(s) whose exchange is `dlx`, bound to the end."""
    return Setup(queues=(*queues, END), exchanges=(("dlx", kind),), bindings=(("dlx", key, "end"),))


def test_reject(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m")
        broker.reject("q")
        return [broker.read("end")]

    (letter,) = compare(one_exchange(Queue("q", dlx="dlx")), story)
    assert (letter.deaths[0].reason, letter.first) == ("rejected", ("rejected", "q", ""))


def test_the_time_to_live_of_a_message(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m", ttl_ms=TTL_MS)
        broker.wait(TTL_MS)
        return [broker.read("end")]

    (letter,) = compare(one_exchange(Queue("q", dlx="dlx")), story)
    assert letter.deaths[0].original_expiration == str(TTL_MS)
    assert not letter.has_expiration


def test_the_time_to_live_of_a_queue(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m")
        broker.wait(TTL_MS)
        return [broker.read("end")]

    (letter,) = compare(one_exchange(Queue("q", dlx="dlx", ttl_ms=TTL_MS)), story)
    assert (letter.deaths[0].reason, letter.deaths[0].original_expiration) == ("expired", None)


@pytest.mark.parametrize(("own_ms", "queue_ms"), [(60_000, TTL_MS), (TTL_MS, 60_000)])
def test_both_times_to_live_and_the_shorter_one_counts(compare, own_ms: int, queue_ms: int) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m", ttl_ms=own_ms)
        broker.wait(TTL_MS)
        return [broker.read("end")]

    (letter,) = compare(one_exchange(Queue("q", dlx="dlx", ttl_ms=queue_ms)), story)
    assert letter.deaths[0].original_expiration == str(own_ms)


def test_a_time_to_live_of_0_with_nobody_there(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m", ttl_ms=0)
        broker.wait(0)
        return [broker.read("end")]

    assert compare(one_exchange(Queue("q", dlx="dlx")), story)[0].deaths[0].reason == "expired"


def test_a_full_queue_drops_its_oldest_message(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        for text in ("one", "two", "three"):
            broker.publish("q", text, ttl_ms=60_000)
        seen = [broker.read("end"), broker.read("end")]
        assert broker.waiting("q") == 1
        return seen

    letters = compare(one_exchange(Queue("q", dlx="dlx", max_len=1)), story)
    assert [letter.text for letter in letters] == ["one", "two"]
    assert letters[0].deaths[0].reason == "maxlen"


def test_a_full_queue_that_refuses_the_new_message(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "one")
        with contextlib.suppress(pika.exceptions.NackError):  # RabbitMQ tells its publisher; Inflight's tells by receipt
            broker.publish("q", "two")
        return [broker.read("end")]

    (letter,) = compare(one_exchange(Queue("q", dlx="dlx", max_len=1, refuses_when_full=True)), story)
    assert (letter.text, letter.deaths[0].reason) == ("two", "maxlen")


def test_the_delivery_limit(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("limited", "m")
        broker.fail("limited")
        return [broker.read("end")]

    (letter,) = compare(one_exchange(Queue("limited", dlx="dlx", delivery_limit=2)), story)
    assert letter.deaths[0].reason == "delivery_limit"


def test_a_cycle_without_a_rejection_is_cut_for_its_target_only(compare) -> None:
    setup = Setup(
        queues=(Queue("a", dlx="to-b", ttl_ms=TTL_MS), Queue("b", dlx="back", ttl_ms=TTL_MS), END),
        exchanges=(("to-b", "fanout"), ("back", "fanout")),
        bindings=(("to-b", "", "b"), ("back", "", "a"), ("back", "", "end")),
    )

    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("a", "m")
        broker.wait(2 * TTL_MS)
        seen = [broker.read("end")]
        assert broker.waiting("a") == broker.waiting("b") == broker.waiting("end") == 0
        return seen

    (letter,) = compare(setup, story)
    assert [(death.queue, death.exchange) for death in letter.deaths] == [("b", "to-b"), ("a", "")]


def test_a_cycle_with_a_rejection_goes_round_and_counts(compare) -> None:
    setup = Setup(
        queues=(Queue("work", dlx="retry"), Queue("delay", dlx="", key="work", ttl_ms=TTL_MS), END),
        exchanges=(("retry", "fanout"),),
        bindings=(("retry", "", "delay"), ("retry", "", "end")),
    )

    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("work", "m", ttl_ms=60_000)
        seen = []
        for _ in range(3):
            broker.reject("work")
            seen.append(broker.read("end"))
            broker.wait(TTL_MS)
        return seen

    letters = compare(setup, story)
    assert [(death.queue, death.count) for death in letters[-1].deaths] == [("work", 3), ("delay", 2)]


def test_two_reasons_in_one_queue_are_two_entries(compare) -> None:
    setup = Setup(
        queues=(Queue("a", dlx="", key="b", ttl_ms=3 * TTL_MS), Queue("b", dlx="x"), END),
        exchanges=(("x", "fanout"),),
        bindings=(("x", "", "a"), ("x", "", "end")),
    )

    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("a", "m")
        broker.wait(3 * TTL_MS)
        broker.reject("b")
        seen = [broker.read("end")]
        broker.reject("a")
        broker.reject("b")
        return [*seen, broker.read("end")]

    letters = compare(setup, story)
    assert [(death.queue, death.reason, death.count) for death in letters[-1].deaths] == [
        ("b", "rejected", 2),
        ("a", "rejected", 1),
        ("a", "expired", 1),
    ]


def test_a_chain_of_two_exchanges(compare) -> None:
    setup = Setup(
        queues=(Queue("a", dlx="first", key="one", ttl_ms=TTL_MS), Queue("b", dlx="second"), END),
        exchanges=(("first", "direct"), ("second", "topic")),
        bindings=(("first", "one", "b"), ("second", "#", "end")),
    )

    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("a", "m", ttl_ms=60_000)
        broker.wait(TTL_MS)
        broker.reject("b")
        return [broker.read("end")]

    (letter,) = compare(setup, story)
    assert [(death.exchange, death.routing_keys) for death in letter.deaths] == [("first", ("one",)), ("", ("a",))]
    assert (letter.exchange, letter.routing_key, letter.first) == ("second", "one", ("expired", "a", ""))


def _copies(key: str | None) -> Setup:
    ends = tuple(Queue(name, end=True) for name in ("own", "copy", "secret", "overridden"))
    return Setup(
        queues=(Queue("q", dlx="dlx", key=key), *ends),
        exchanges=(("dlx", "direct"),),
        bindings=(("dlx", "q", "own"), ("dlx", "c", "copy"), ("dlx", "s", "secret"), ("dlx", "k", "overridden")),
    )


def test_copies_and_blind_copies_are_routed_and_blind_ones_not_shown(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m", cc=["c", "d"], bcc=["s"])
        broker.reject("q")
        return [broker.read("own"), broker.read("copy"), broker.read("secret")]

    for letter in compare(_copies(None), story):
        assert (letter.cc, letter.has_bcc, letter.deaths[0].routing_keys) == (("c", "d"), False, ("q", "c", "d"))


def test_an_overriding_key_removes_copies(compare) -> None:
    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m", cc=["c"], bcc=["s"])
        broker.reject("q")
        seen = [broker.read("overridden")]
        assert broker.waiting("own") == broker.waiting("copy") == broker.waiting("secret") == 0
        return seen

    (letter,) = compare(_copies("k"), story)
    assert (letter.cc, letter.deaths[0].routing_keys, letter.routing_key) == ((), ("q", "c"), "k")


def test_copies_still_count_at_the_second_death(compare) -> None:
    ends = tuple(Queue(name, end=True) for name in ("copy", "secret"))
    setup = Setup(
        queues=(Queue("a", dlx="x"), Queue("b", dlx="y"), *ends),
        exchanges=(("x", "fanout"), ("y", "direct")),
        bindings=(("x", "", "b"), ("y", "c", "copy"), ("y", "s", "secret")),
    )

    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("a", "m", cc=["c"], bcc=["s"])
        broker.reject("a")
        broker.reject("b")
        return [broker.read("copy"), broker.read("secret")]

    assert [letter.deaths[0].routing_keys for letter in compare(setup, story)] == [("a", "c")] * 2


def test_a_queue_that_two_bindings_lead_to_gets_one_copy(compare) -> None:
    setup = Setup(
        queues=(Queue("q", dlx="dlx"), END),
        exchanges=(("dlx", "topic"),),
        bindings=(("dlx", "#", "end"), ("dlx", "q", "end"), ("dlx", "c", "end")),
    )

    def story(broker: Broker) -> list[DeadLetterSeen]:
        broker.publish("q", "m", cc=["c"])
        broker.reject("q")
        seen = [broker.read("end")]
        assert broker.waiting("end") == 0
        return seen

    compare(setup, story)


def test_an_unknown_exchange_gets_nothing_and_frees_the_queue(rabbit_with) -> None:
    """Both drop the message. Inflight says so in receipt and ledger, RabbitMQ nowhere."""
    setup = Setup(queues=(Queue("q", dlx="nowhere"),))
    rabbit = rabbit_with(setup)
    inflight = InflightBroker(replace(setup, arguments=True))
    for broker in (rabbit, inflight):
        broker.publish("q", "m")
        broker.reject("q")
        assert broker.waiting("q") == 0
    assert [receipt["outcome"] for receipt in inflight.engine.receipts] == ["dead_letter_unroutable"]


def test_a_queue_that_leads_to_itself_loses_the_message_the_first_time(rabbit_with, channel) -> None:
    """Both drop it. RabbitMQ logs the cycle, Inflight has it in receipt and ledger."""
    setup = Setup(queues=(Queue("q", dlx="", key="q", ttl_ms=TTL_MS), END))
    rabbit, inflight = rabbit_with(setup), InflightBroker(setup)
    rabbit.publish("q", "m")
    # A second message behind it, which leaves after it for a reason that makes no cycle: then the first one is gone.
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end", "x-message-ttl": 2 * TTL_MS}
    channel.queue_declare("probe", arguments=arguments)
    channel.basic_publish("", "probe", b"probe")
    get(channel, "end")
    channel.queue_delete("probe")
    assert rabbit.waiting("q") == 0
    inflight.publish("q", "m")
    inflight.wait(10 * TTL_MS)
    assert inflight.waiting("q") == 0
    assert [receipt["outcome"] for receipt in inflight.engine.receipts] == ["dead_letter_unroutable"]


PATTERNS = ["", "a", "*", "#", "a.*", "a.#", "*.b", "#.b", "a.*.c", "a.#.c", "#.b.#", "*.*", "*.#", "#.*", "#.#", "a.b", "a..b"]
KEYS = ["", "a", "b", "a.b", "a.c", "b.b", "a.b.c", "a.c.c", "a.b.b.c", "a..c", "a..b", "a.", ".a", ".", "A.b", "*", "#", "a.#"]


def test_every_pattern_fits_the_same_keys(channel) -> None:
    channel.exchange_declare("patterns", "topic")
    for number, pattern in enumerate(PATTERNS):
        channel.queue_declare(f"p{number}", auto_delete=True)
        channel.queue_bind(f"p{number}", "patterns", pattern)
    for key in KEYS:
        channel.basic_publish("patterns", key, key.encode())
    for number, pattern in enumerate(PATTERNS):
        got = []
        while (found := channel.basic_get(f"p{number}", auto_ack=True))[0] is not None:
            got.append((found[2] or b"").decode())
        assert got == [key for key in KEYS if topic_matches(pattern, key)], f"pattern {pattern!r}"


# --- differences on purpose: docs/dead_letters.md says why ----------------------------------------------------------------------


def test_rabbitmq_3_10_counts_a_history_from_outside_and_inflight_does_not(rabbit_with) -> None:
    """RabbitMQ stopped believing foreign histories with version 4.0."""
    setup = one_exchange(Queue("q", dlx="dlx"))

    def story(broker: Broker) -> DeadLetterSeen:
        broker.publish("q", "m")
        broker.reject("q")
        broker.republish("q", broker.read("end"))
        broker.reject("q")
        return broker.read("end")

    rabbit, inflight = story(rabbit_with(setup)), story(InflightBroker(setup))
    assert (rabbit.deaths[0].count, inflight.deaths[0].count) == (2, 1)
    assert replace(inflight, deaths=rabbit.deaths) == rabbit
    assert '"count":1' in inflight.others["x-received-death"]


def test_rabbitmq_3_10_reverses_older_deaths_and_overlooks_cycles(rabbit_with) -> None:
    """work rejects, then a and b expire, and b leads back to a: a way without a rejection, that nothing else would end.

    RabbitMQ 3.10 reverses the array each time before it puts the new entry in front, so it finds the rejection between b and a,
    and the message goes round for ever. Its rule is the same, and since 3.13.3 it keeps to it.
    """
    setup = Setup(
        queues=(Queue("work", dlx="x"), Queue("a", dlx="y", ttl_ms=TTL_MS), Queue("b", dlx="z", ttl_ms=TTL_MS), END),
        exchanges=(("x", "fanout"), ("y", "fanout"), ("z", "fanout")),
        bindings=(("x", "", "a"), ("y", "", "b"), ("z", "", "a"), ("z", "", "work"), ("z", "", "end")),
    )

    def story(broker: Broker) -> DeadLetterSeen:
        broker.publish("work", "m")
        broker.reject("work")
        broker.wait(2 * TTL_MS)
        return broker.read("end")

    rabbit, inflight = rabbit_with(setup), InflightBroker(setup)
    seen = story(rabbit), story(inflight)
    assert _older_deaths_sorted([seen[0]]) == _older_deaths_sorted([seen[1]])
    assert [[death.queue for death in letter.deaths] for letter in seen] == [["b", "work", "a"], ["b", "a", "work"]]
    assert [death.count for death in rabbit.read("end").deaths[:1]] == [2]
    inflight.wait(100 * TTL_MS)
    assert inflight.waiting("a") == inflight.waiting("b") == 0
    assert inflight.waiting("work") == 1


def test_only_rabbitmq_tells_the_time_to_live_of_what_has_not_died_of_it(rabbit_with) -> None:
    """Its documentation says the opposite: only if the message was dead-lettered due to its time to live."""
    setup = one_exchange(Queue("q", dlx="dlx"))

    def story(broker: Broker) -> DeadLetterSeen:
        broker.publish("q", "m", ttl_ms=60_000)
        broker.reject("q")
        return broker.read("end")

    rabbit, inflight = story(rabbit_with(setup)), story(InflightBroker(setup))
    assert [letter.deaths[0].original_expiration for letter in (rabbit, inflight)] == ["60000", None]
    assert not rabbit.has_expiration
    assert not inflight.has_expiration


def test_only_inflight_tells_the_last_death_apart(rabbit_with) -> None:
    """RabbitMQ has x-last-death-… since 3.13."""
    setup = one_exchange(Queue("q", dlx="dlx"))

    def story(broker: Broker) -> DeadLetterSeen:
        broker.publish("q", "m")
        broker.reject("q")
        return broker.read("end")

    rabbit, inflight = story(rabbit_with(setup)), story(InflightBroker(setup))
    assert not [name for name in rabbit.others if name.startswith("x-last-death")]
    assert inflight.others["x-last-death-reason"] == "rejected"
    assert inflight.others["x-last-death-queue"] == "q"
    assert inflight.others["x-last-death-exchange"] == ""


def test_without_an_exchange_only_inflight_keeps_the_dead_letter(rabbit_with) -> None:
    setup = Setup(queues=(Queue("q"),))
    rabbit, inflight = rabbit_with(setup), InflightBroker(setup)
    for broker in (rabbit, inflight):
        broker.publish("q", "m")
        broker.reject("q")
        assert broker.waiting("q") == 0
    assert inflight.engine.read("inflight.dead-letters") == ["m"]


def test_an_unknown_client_has_a_queue_and_an_unknown_queue_has_none(rabbit_with, channel) -> None:
    """The default exchange routes to any client id: a device may connect for the first time tomorrow."""
    setup = Setup(queues=(Queue("q", dlx="", key="unknown"),))
    rabbit, inflight = rabbit_with(setup), InflightBroker(setup)
    for broker in (rabbit, inflight):
        broker.publish("q", "m")
        broker.reject("q")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        rabbit.waiting("unknown")
    assert inflight.waiting("unknown") == 1


def test_the_highest_priority_holds_in_both(rabbitmq, rabbit_with) -> None:
    """Policies of RabbitMQ, set through its own command."""
    ends = (Queue("low", end=True), Queue("high", end=True))
    setup = Setup(
        queues=(Queue("lamp-1"), *ends),
        exchanges=(("low-x", "fanout"), ("high-x", "fanout")),
        bindings=(("low-x", "", "low"), ("high-x", "", "high")),
    )
    rabbit = rabbit_with(setup)
    rabbitmq.set_policies(
        ("all", "^lamp-", {"dead-letter-exchange": "low-x", "message-ttl": TTL_MS}, 1),
        ("some", "^lamp-1$", {"dead-letter-exchange": "high-x"}, 7),
    )
    rabbit.publish("lamp-1", "m")
    rabbit.reject("lamp-1")
    seen = rabbit.read("high")
    engine = EngineModel(
        policies=(
            Policy(name="all", clients="lamp-*", priority=1, dead_letter_exchange="low-x", message_ttl_ms=TTL_MS),
            Policy(name="some", clients="lamp-1", priority=7, dead_letter_exchange="high-x"),
        ),
        exchanges=tuple(
            Exchange(name=f"{end.name}-x", type=ExchangeType.FANOUT, bindings=(Binding(destination=_topic(end)),)) for end in ends
        ),
    )
    engine.connect("lamp-1", answer=0x87).send("lamp-1", "m")
    assert seen.deaths[0].reason == engine.deaths("high")[0]["reason"] == "rejected"
    assert engine.read("low") == []
    assert rabbit.waiting("low") == 0


def _topic(end: Queue) -> Destination:
    return parse_destination(f"topic:{end.name}")
