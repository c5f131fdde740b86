"""The same dead letters in a real RabbitMQ and in Inflight, compared field by field. What differs on purpose is said here and in
docs/guides/dead_letters.md with the reason.

RabbitMQ is Debian's, started by the test. Inflight is its engine in this process, without Spark and Kafka.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
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
    pytest.mark.rabbitmq,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not is_installed(), reason="RabbitMQ is not installed: apt-get install rabbitmq-server"),
]

TTL_MS = 150
END = Queue("end", end=True)
Step = Callable[[Broker], DeadLetterSeen | None]
Compare = Callable[..., list[DeadLetterSeen]]


def step(name: str) -> Callable[..., Step]:
    """Makes a function that makes steps of a method of Broker: `reject("q")` is a step."""
    return lambda *arguments, **options: lambda broker: getattr(broker, name)(*arguments, **options)


publish, reject, fail, wait, read = map(step, ("publish", "reject", "fail", "wait", "read"))


def has(count: int, *queues: str) -> Step:
    """Checks how many messages are in each of these queues."""

    def check(broker: Broker) -> None:
        assert [broker.waiting(queue) for queue in queues] == [count] * len(queues)

    return check


def play(broker: Broker, steps: Sequence[Step]) -> list[DeadLetterSeen]:
    """Carries the steps out; returns the dead letters that were read."""
    return [seen for step in steps if (seen := step(broker)) is not None]


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
    """Makes a RabbitMQ with the queues and exchanges of one test."""
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
def compare(rabbit_with: Callable[[Setup], RabbitBroker]) -> Compare:
    """Plays steps on both, on Inflight once with policies and once with headers of the message; all must see the same."""

    def run(setup: Setup, *steps: Step) -> list[DeadLetterSeen]:
        rabbit = _times_to_live_of_expired_ones(_older_deaths_sorted(play(rabbit_with(setup), steps)))
        assert rabbit, "the steps have read nothing"
        inflight = play(InflightBroker(setup), steps)
        assert _older_deaths_sorted(inflight) == rabbit
        if sum(queue.dlx is not None for queue in setup.queues) == 1:
            assert _older_deaths_sorted(play(InflightBroker(replace(setup, arguments=True)), steps)) == rabbit
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


def test_reject(compare: Compare) -> None:
    (letter,) = compare(one_exchange(Queue("q", dlx="dlx")), publish("q", "m"), reject("q"), read("end"))
    assert (letter.deaths[0].reason, letter.first) == ("rejected", ("rejected", "q", ""))


@pytest.mark.parametrize(
    ("own_ms", "queue_ms", "original"),
    [(TTL_MS, None, str(TTL_MS)), (None, TTL_MS, None), (60_000, TTL_MS, "60000"), (TTL_MS, 60_000, str(TTL_MS)), (0, None, "0")],
    ids=["of the message", "of the queue", "the queue's is shorter", "the message's is shorter", "0 with nobody there"],
)
def test_times_to_live(compare: Compare, own_ms: int | None, queue_ms: int | None, original: str | None) -> None:
    setup = one_exchange(Queue("q", dlx="dlx", ttl_ms=queue_ms))
    passed_ms = min(ms for ms in (own_ms, queue_ms) if ms is not None)
    (letter,) = compare(setup, publish("q", "m", ttl_ms=own_ms), wait(passed_ms), read("end"))
    assert (letter.deaths[0].reason, letter.deaths[0].original_expiration) == ("expired", original)
    assert not letter.has_expiration


def test_a_full_queue_drops_its_oldest_message(compare: Compare) -> None:
    setup = one_exchange(Queue("q", dlx="dlx", max_len=1))
    sent = [publish("q", text, ttl_ms=60_000) for text in ("one", "two", "three")]
    letters = compare(setup, *sent, read("end"), read("end"), has(1, "q"))
    assert [letter.text for letter in letters] == ["one", "two"]
    assert letters[0].deaths[0].reason == "maxlen"


def test_a_full_queue_that_refuses_the_new_message(compare: Compare) -> None:
    def publish_to_a_full_queue(broker: Broker) -> None:
        with contextlib.suppress(pika.exceptions.NackError):  # RabbitMQ tells its publisher; Inflight's tells by receipt
            broker.publish("q", "two")

    setup = one_exchange(Queue("q", dlx="dlx", max_len=1, refuses_when_full=True))
    (letter,) = compare(setup, publish("q", "one"), publish_to_a_full_queue, read("end"))
    assert (letter.text, letter.deaths[0].reason) == ("two", "maxlen")


def test_the_delivery_limit(compare: Compare) -> None:
    setup = one_exchange(Queue("limited", dlx="dlx", delivery_limit=2))
    (letter,) = compare(setup, publish("limited", "m"), fail("limited"), read("end"))
    assert letter.deaths[0].reason == "delivery_limit"


def test_a_cycle_without_a_rejection_is_cut_for_its_target_only(compare: Compare) -> None:
    setup = Setup(
        queues=(Queue("a", dlx="to-b", ttl_ms=TTL_MS), Queue("b", dlx="back", ttl_ms=TTL_MS), END),
        exchanges=(("to-b", "fanout"), ("back", "fanout")),
        bindings=(("to-b", "", "b"), ("back", "", "a"), ("back", "", "end")),
    )
    (letter,) = compare(setup, publish("a", "m"), wait(2 * TTL_MS), read("end"), has(0, "a", "b", "end"))
    assert [(death.queue, death.exchange) for death in letter.deaths] == [("b", "to-b"), ("a", "")]


def test_a_cycle_with_a_rejection_goes_round_and_counts(compare: Compare) -> None:
    setup = Setup(
        queues=(Queue("work", dlx="retry"), Queue("delay", dlx="", key="work", ttl_ms=TTL_MS), END),
        exchanges=(("retry", "fanout"),),
        bindings=(("retry", "", "delay"), ("retry", "", "end")),
    )
    letters = compare(setup, publish("work", "m", ttl_ms=60_000), *[reject("work"), read("end"), wait(TTL_MS)] * 3)
    assert [(death.queue, death.count) for death in letters[-1].deaths] == [("work", 3), ("delay", 2)]


def test_two_reasons_in_one_queue_are_two_entries(compare: Compare) -> None:
    setup = Setup(
        queues=(Queue("a", dlx="", key="b", ttl_ms=3 * TTL_MS), Queue("b", dlx="x"), END),
        exchanges=(("x", "fanout"),),
        bindings=(("x", "", "a"), ("x", "", "end")),
    )
    expires = (publish("a", "m"), wait(3 * TTL_MS))
    letters = compare(setup, *expires, reject("b"), read("end"), reject("a"), reject("b"), read("end"))
    assert [(death.queue, death.reason, death.count) for death in letters[-1].deaths] == [
        ("b", "rejected", 2),
        ("a", "rejected", 1),
        ("a", "expired", 1),
    ]


def test_a_chain_of_two_exchanges(compare: Compare) -> None:
    setup = Setup(
        queues=(Queue("a", dlx="first", key="one", ttl_ms=TTL_MS), Queue("b", dlx="second"), END),
        exchanges=(("first", "direct"), ("second", "topic")),
        bindings=(("first", "one", "b"), ("second", "#", "end")),
    )
    (letter,) = compare(setup, publish("a", "m", ttl_ms=60_000), wait(TTL_MS), reject("b"), read("end"))
    assert [(death.exchange, death.routing_keys) for death in letter.deaths] == [("first", ("one",)), ("", ("a",))]
    assert (letter.exchange, letter.routing_key, letter.first) == ("second", "one", ("expired", "a", ""))


def _copies(key: str | None) -> Setup:
    ends = tuple(Queue(name, end=True) for name in ("own", "copy", "secret", "overridden"))
    return Setup(
        queues=(Queue("q", dlx="dlx", key=key), *ends),
        exchanges=(("dlx", "direct"),),
        bindings=(("dlx", "q", "own"), ("dlx", "c", "copy"), ("dlx", "s", "secret"), ("dlx", "k", "overridden")),
    )


def test_copies_and_blind_copies_are_routed_and_blind_ones_not_shown(compare: Compare) -> None:
    steps = (publish("q", "m", cc=["c", "d"], bcc=["s"]), reject("q"), read("own"), read("copy"), read("secret"))
    for letter in compare(_copies(None), *steps):
        assert (letter.cc, letter.has_bcc, letter.deaths[0].routing_keys) == (("c", "d"), False, ("q", "c", "d"))


def test_an_overriding_key_removes_copies(compare: Compare) -> None:
    steps = (publish("q", "m", cc=["c"], bcc=["s"]), reject("q"), read("overridden"), has(0, "own", "copy", "secret"))
    (letter,) = compare(_copies("k"), *steps)
    assert (letter.cc, letter.deaths[0].routing_keys, letter.routing_key) == ((), ("q", "c"), "k")


def test_copies_still_count_at_the_second_death(compare: Compare) -> None:
    ends = tuple(Queue(name, end=True) for name in ("copy", "secret"))
    setup = Setup(
        queues=(Queue("a", dlx="x"), Queue("b", dlx="y"), *ends),
        exchanges=(("x", "fanout"), ("y", "direct")),
        bindings=(("x", "", "b"), ("y", "c", "copy"), ("y", "s", "secret")),
    )
    letters = compare(setup, publish("a", "m", cc=["c"], bcc=["s"]), reject("a"), reject("b"), read("copy"), read("secret"))
    assert [letter.deaths[0].routing_keys for letter in letters] == [("a", "c")] * 2


def test_a_queue_that_two_bindings_lead_to_gets_one_copy(compare: Compare) -> None:
    setup = Setup(
        queues=(Queue("q", dlx="dlx"), END),
        exchanges=(("dlx", "topic"),),
        bindings=(("dlx", "#", "end"), ("dlx", "q", "end"), ("dlx", "c", "end")),
    )
    compare(setup, publish("q", "m", cc=["c"]), reject("q"), read("end"), has(0, "end"))


def test_an_unknown_exchange_gets_nothing_and_frees_the_queue(rabbit_with) -> None:
    """Each broker drops the message. Inflight reports it in receipt and ledger, RabbitMQ nowhere."""
    setup = Setup(queues=(Queue("q", dlx="nowhere"),))
    rabbit = rabbit_with(setup)
    inflight = InflightBroker(replace(setup, arguments=True))
    for broker in (rabbit, inflight):
        broker.publish("q", "m")
        broker.reject("q")
        assert broker.waiting("q") == 0
    assert [receipt["outcome"] for receipt in inflight.engine.receipts] == ["dead_letter_unroutable"]


def test_a_queue_that_leads_to_itself_loses_the_message_the_first_time(rabbit_with, channel) -> None:
    """Each broker drops the message. RabbitMQ logs the cycle, Inflight reports it in receipt and ledger."""
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


# --- differences on purpose: docs/guides/dead_letters.md says why ---------------------------------------------------------------


def seen_by_both(
    rabbit_with: Callable[[Setup], RabbitBroker], setup: Setup, *steps: Step
) -> tuple[DeadLetterSeen, DeadLetterSeen]:
    """Returns what RabbitMQ shows last, and what Inflight shows."""
    return play(rabbit_with(setup), steps)[-1], play(InflightBroker(setup), steps)[-1]


def test_rabbitmq_3_10_counts_a_history_from_outside_and_inflight_does_not(rabbit_with) -> None:
    """RabbitMQ ignores death histories from outside since version 4.0."""
    setup = one_exchange(Queue("q", dlx="dlx"))
    steps = (publish("q", "m"), reject("q"), lambda broker: broker.republish("q", broker.read("end")), reject("q"), read("end"))
    rabbit, inflight = seen_by_both(rabbit_with, setup, *steps)
    assert (rabbit.deaths[0].count, inflight.deaths[0].count) == (2, 1)
    assert replace(inflight, deaths=rabbit.deaths) == rabbit
    assert '"count":1' in inflight.others["x-received-death"]


def test_rabbitmq_3_10_reverses_older_deaths_and_overlooks_cycles(rabbit_with) -> None:
    """Queue work rejects, then a and b expire, and b leads back to a: a cycle without a rejection, which nothing else ends.

    RabbitMQ 3.10 reverses the array each time before it puts the new entry in front. So it finds the rejection between b and a,
    and the message circulates for ever. Its rule is the same as ours, and it obeys the rule since 3.13.3.
    """
    setup = Setup(
        queues=(Queue("work", dlx="x"), Queue("a", dlx="y", ttl_ms=TTL_MS), Queue("b", dlx="z", ttl_ms=TTL_MS), END),
        exchanges=(("x", "fanout"), ("y", "fanout"), ("z", "fanout")),
        bindings=(("x", "", "a"), ("y", "", "b"), ("z", "", "a"), ("z", "", "work"), ("z", "", "end")),
    )
    rabbit, inflight = rabbit_with(setup), InflightBroker(setup)
    steps = (publish("work", "m"), reject("work"), wait(2 * TTL_MS), read("end"))
    seen = [play(broker, steps)[0] for broker in (rabbit, inflight)]
    assert _older_deaths_sorted([seen[0]]) == _older_deaths_sorted([seen[1]])
    assert [[death.queue for death in letter.deaths] for letter in seen] == [["b", "work", "a"], ["b", "a", "work"]]
    assert [death.count for death in rabbit.read("end").deaths[:1]] == [2]
    inflight.wait(100 * TTL_MS)
    assert inflight.waiting("a") == inflight.waiting("b") == 0
    assert inflight.waiting("work") == 1


def test_only_rabbitmq_tells_the_time_to_live_of_what_has_not_died_of_it(rabbit_with) -> None:
    """RabbitMQ's documentation says the opposite: only if the message was dead-lettered due to its time to live."""
    setup = one_exchange(Queue("q", dlx="dlx"))
    letters = seen_by_both(rabbit_with, setup, publish("q", "m", ttl_ms=60_000), reject("q"), read("end"))
    assert [letter.deaths[0].original_expiration for letter in letters] == ["60000", None]
    assert [letter.has_expiration for letter in letters] == [False, False]


def test_only_inflight_tells_the_last_death_apart(rabbit_with) -> None:
    """RabbitMQ has x-last-death-… since 3.13."""
    setup = one_exchange(Queue("q", dlx="dlx"))
    rabbit, inflight = seen_by_both(rabbit_with, setup, publish("q", "m"), reject("q"), read("end"))
    assert not [name for name in rabbit.others if name.startswith("x-last-death")]
    assert [inflight.others[f"x-last-death-{name}"] for name in ("reason", "queue", "exchange")] == ["rejected", "q", ""]


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
