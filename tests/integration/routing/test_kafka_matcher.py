"""The matcher on a real broker: nothing is missed, and what is routed twice says so."""

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sinks.kafka.partitioning import partition_of
from sinks.routing.kafka_matcher import KafkaMatcher
from tests.integration.routing.routed_topics import PARTITIONS, Copy, RoutedTopics
from tests.support.inflight_process import InflightProcess
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def topics(kafka: SharedKafka, request: pytest.FixtureRequest) -> RoutedTopics:
    return RoutedTopics(kafka.bootstrap_servers, request.node.name.removeprefix("test_")[:40])


@contextmanager
def matching(topics: RoutedTopics, *, owns: int = 3 * PARTITIONS) -> Iterator[KafkaMatcher]:
    """Runs a matcher, from when it owns so many partitions."""
    matcher = KafkaMatcher(topics.settings, topics.host)
    matcher.start()
    try:
        wait_until(lambda: matcher.counters.partitions_owned >= owns, "the matcher owns partitions")
        yield matcher
    finally:
        asyncio.run(matcher.close(30))


def numbers_by_publisher(copies: list[Copy]) -> dict[tuple[str, str], list[int]]:
    """Returns the payloads in the order of the log, repetitions left out, for each publisher and client."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    seen = set()
    for copy in copies:
        publisher, number = (copy.value or b"").decode().split()
        position = copy.client_id, copy.routing.source, copy.routing.mark
        if position not in seen:
            seen.add(position)
            found[publisher, copy.client_id].append(int(number))
    return found


@pytest.mark.promise("subscribe-before-match")
def test_a_publication_after_a_suback_is_never_missed(topics: RoutedTopics) -> None:
    """The gateway answers a SUBSCRIBE when the list is confirmed, so a confirmed list has to match whatever is appended then."""
    rounds = 300
    with matching(topics):
        for number in range(rounds):
            topics.subscribe(f"client{number}", f"topic/{number}")
            topics.publish(f"topic/{number}", b"dev %d" % number, publisher=f"dev{number % 5}")
        copies = topics.copies(at_least=rounds)
    assert sorted(copy.client_id for copy in copies) == sorted(f"client{number}" for number in range(rounds))


def test_of_copies_of_a_publication_the_first_one_is_routed(topics: RoutedTopics) -> None:
    """sinks/routing/copies.py: also by a matcher that begins behind the first one."""
    since_ms = int(time.time() * 1_000)
    topics.subscribe("client", "t")
    topics.mark("dev", 7)
    with matching(topics) as first:
        topics.hand_on("t", b"a", inflight_id="dev:7:1", since_ms=since_ms, connection_id=7)
        topics.hand_on("t", b"b", inflight_id="dev:7:2", since_ms=since_ms, connection_id=7)
        topics.mark("dev", 8)
        topics.hand_on("t", b"b", inflight_id="dev:7:2", since_ms=since_ms)
        topics.hand_on("t", b"c", inflight_id="dev:7:3", since_ms=since_ms)
        topics.hand_on("t", b"c", inflight_id="dev:7:3", since_ms=since_ms, connection_id=7)
        assert [copy.value for copy in topics.copies(at_least=3)] == [b"a", b"b", b"c"]
        wait_until(lambda: first.counters.publications_copied == 2, "both copies are found")
    with matching(topics) as second:
        topics.hand_on("t", b"a", inflight_id="dev:7:1", since_ms=since_ms)
        topics.hand_on("t", b"end", inflight_id="dev:8:1", since_ms=since_ms, connection_id=8)
        assert [copy.value for copy in topics.copies(at_least=4)] == [b"a", b"b", b"c", b"end"]
        assert second.counters.publications_copied == 1


@pytest.mark.promise("unsuback")
def test_nobody_gets_what_was_published_after_an_unsubscribe(topics: RoutedTopics) -> None:
    with matching(topics):
        for number in range(50):
            topics.subscribe("client", f"topic/{number}", version=number + 1)
            topics.publish(f"topic/{number - 1}")
        topics.publish("topic/49", b"the last")
        assert [copy.value for copy in topics.copies(at_least=1)] == [b"the last"]


@pytest.mark.promise("routed-once", "matcher-dies")
def test_a_killed_matcher_is_continued_with_the_same_marks(topics: RoutedTopics) -> None:
    for client_id in ("c1", "c2"):
        topics.subscribe(client_id, "t")
    topics.subscribe("m1", "$share/g/t")
    topics.subscribe("m2", "$share/g/t")
    topics.publish("t", b"dev -1")  # before the first start of a matcher: not routed
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.routing.matcher_process", topics.host.bootstrap_servers, topics.prefix]
    )
    try:
        topics.send("t", b"begin 0")
        topics.copies(at_least=3)  # it owns partitions of `publications`; those of `uplink` came with them
        for number in range(20):
            topics.publish("t", b"dev %d" % number)
        before = topics.copies(at_least=63)
    finally:
        process.kill()
        process.wait()
    topics.publish("t", b"dev 20")
    with matching(topics):
        everything = topics.copies(at_least=2 * len(before) + 3)
    repeated = [identity(copy) for copy in everything]
    assert {one for one in repeated if repeated.count(one) == 2} == set(map(identity, before)), "all of it comes twice"
    assert numbers_by_publisher(everything)["dev", "c1"] == list(range(21))


def identity(copy: Copy) -> tuple[str, int, int]:
    return copy.client_id, copy.routing.source, copy.routing.mark


@pytest.mark.promise("routed-order")
def test_partitions_move_without_a_missing_publication(topics: RoutedTopics) -> None:
    topics.subscribe("client", "t")
    sent = 0

    def publish(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            for publisher in ("p1", "p2", "p3"):
                topics.publish("t", f"{publisher} {sent}".encode(), publisher=publisher)
            sent += 1

    with matching(topics) as first:
        publish(30)
        with matching(topics, owns=1):
            for _ in range(200):
                publish(5)
                if first.counters.partitions_owned < 3 * PARTITIONS:
                    break
            publish(30)
        publish(30)
        copies = topics.copies(at_least=3 * sent)
    found = numbers_by_publisher(copies)
    assert {publisher: numbers for (publisher, _), numbers in found.items()} == {
        name: list(range(sent)) for name in ("p1", "p2", "p3")
    }


def test_publications_wait_for_a_connected_client_that_catches_up(topics: RoutedTopics) -> None:
    """Its partition waits, in order, and with it the other publishers there. Other partitions and a rebalance go on."""
    publishers = {partition_of(f"p{number}".encode(), PARTITIONS): f"p{number}" for number in range(50)}
    held, free = publishers[0], publishers[1]
    topics.settings = replace(topics.settings, max_wait_ms=60_000)
    topics.subscribe("slow", "s")
    topics.subscribe("fast", "f")
    with matching(topics) as matcher:
        topics.fall_behind("slow")
        wait_until(lambda: matcher.throttles.is_anybody_progressing, "the throttle is known")
        for number in range(1_200):
            topics.start_publishing("s" if number % 2 else "f", b"%s %d" % (held.encode(), number), publisher=held)
        wait_until(lambda: matcher.counters.partitions_waiting == 1, "the partition waits")
        uplink = topics.settings.uplink_topic
        wait_until(lambda: matcher.throttles.of_partition(uplink, 0) is not None, "all processes hear that it waits")
        assert matcher.throttles.of_partition(uplink, 1) is None
        for number in range(5):
            topics.publish("f", b"%s %d" % (free.encode(), number), publisher=free)
        before = numbers_by_publisher(topics.copies(at_least=6))
        assert before == {(held, "fast"): [0], (free, "fast"): [0, 1, 2, 3, 4]}
        with matching(topics, owns=1):
            wait_until(lambda: matcher.counters.partitions_owned < 3 * PARTITIONS, "partitions move while one waits")
            topics.catch_up("slow")
            after = numbers_by_publisher(topics.copies(at_least=1_205))
            wait_until(lambda: matcher.throttles.of_partition(uplink, 0) is None, "all processes hear that it goes on")
    assert after[held, "slow"] == list(range(1, 1_200, 2))
    assert after[held, "fast"] == list(range(0, 1_200, 2))
    assert matcher.counters.waits_given_up == 0


def test_what_comes_after_the_first_start_is_routed_by_the_next(topics: RoutedTopics) -> None:
    topics.subscribe("client", "t")
    with matching(topics):
        pass
    topics.publish("t", b"while nobody ran")
    with matching(topics):
        assert [copy.value for copy in topics.copies(at_least=1)] == [b"while nobody ran"]


def test_a_process_of_its_own_finishes_what_it_has_read(topics: RoutedTopics, tmp_path: Path) -> None:
    topics.subscribe("client", "t")
    options = (
        "routing.enabled=true",
        f"routing.group_id={topics.settings.group_id}",
        f"topics.prefix={topics.prefix}",
        f"kafka.bootstrap_servers={topics.host.bootstrap_servers}",
        "metrics.matcher_port=0",
    )
    with InflightProcess(tmp_path, "matcher", "matcher", "--data-dir", str(tmp_path), settings=options) as process:
        for number in range(100):
            topics.send("t", b"%d" % number)
        wait_until(lambda: metric(process, "inflight_matcher_partitions_owned") == 3 * PARTITIONS, "it owns the partitions")
        assert urllib.request.urlopen(f"http://{process.ready['metrics']}/readyz").status == 200
        topics.copies(at_least=100)
        process.stop()
    topics.send("t", b"100")
    with matching(topics):
        copies = topics.copies(at_least=101)
    assert sorted(int(copy.value or b"") for copy in copies) == list(range(101)), "nothing twice"


def metric(process: InflightProcess, name: str) -> float:
    lines = urllib.request.urlopen(f"http://{process.ready['metrics']}/metrics").read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name)))


def test_no_publication_is_missed_when_the_first_one_subscribes(topics: RoutedTopics) -> None:
    """While nobody subscribes, the matcher reads at intervals."""
    with matching(topics) as matcher:
        for number in range(1, 200, 2):
            topics.publish("t", b"early", publisher=f"dev{number % 3}")
            topics.subscribe("client", f"t/{number}", version=number)
            topics.publish(f"t/{number}", b"%d" % number, publisher=f"dev{number % 5}")
            topics.subscribe("client", version=number + 1)
            time.sleep(0.001 * (number % 40))
        topics.subscribe("client", "#", version=1_000)
        topics.publish("t", b"last")
        found = {copy.value for copy in topics.copies(at_least=1)}
        wait_until(lambda: matcher.counters.publications >= 201, "all publications were read")
        assert matcher.counters.publications == 201
        assert b"last" in found


def test_a_retained_publication_is_published_once_at_its_time(topics: RoutedTopics) -> None:
    """By the matcher that runs then: the one that has read it is gone. An empty payload comes back as an empty one."""
    with matching(topics) as first:
        topics.send("t", b"later", retain=True, deliver_at="+3s")
        topics.send("t", b"", retain=True, deliver_at="+4s")
        wait_until(lambda: first.counters.delayed_publications == 2, "both wait")
    topics.subscribe("client", "t")
    with matching(topics) as second:
        copies = topics.copies(at_least=2)
        wait_until(lambda: not second.counters.delayed_publications, "nothing waits any more")
        assert [copy.value for copy in copies] == [b"later", b""]
        wait_until(lambda: not second.counters.retained_messages, "the empty one has removed the other")
        topics.send("t", b"end")
        assert len(topics.copies(at_least=3)) == 3
