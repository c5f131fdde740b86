"""What the Producer's promises cost with kafka-python's public API alone: today's carrier beside three others, in turn.

.venv/bin/python -m bench.producer_variants [MESSAGES [ROUNDS]]

today: one record per message, repeated by Kafka's client; requests are watched (wire_watch.py).
futures: the same without the watch: a future's result or error is all that is known.
resend: the client gives up after an attempt (`delivery_timeout_ms`); the record goes again with a new producer.
transactions: whatever waits is one transaction; a failure aborts it or leaves it in doubt.
"""

import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import AuthorizationError, KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, RetriableError
from prometheus_client import CollectorRegistry

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from inflight.producer import Cause, Producer, ProducerSettings, SendFailed
from inflight.producer import carrier as carriers
from inflight.producer.carrier import KafkaCarrier, client_config, require_topic
from inflight.producer.send import Send, SendRefused
from sinks.kafka.clients import partition_of
from sinks.kafka.producers import abandon

PARTITIONS = 4
NEVER_MS = 7 * 24 * 3_600_000


class FuturesCarrier:
    """The idempotent producer's own futures."""

    def __init__(self, *, bootstrap_servers: str, settings: ProducerSettings, reports: Any) -> None:
        self.reports = reports
        self.settings = settings
        self.refused = False
        require_topic(bootstrap_servers, settings)
        self.producer = KafkaProducer(**self.config(bootstrap_servers, settings))
        self.partitions = len(self.producer.partitions_for(settings.topic))

    def config(self, bootstrap_servers: str, settings: ProducerSettings) -> dict[str, Any]:
        return {
            **client_config(bootstrap_servers, settings),
            "acks": "all",
            "enable_idempotence": True,
            "request_timeout_ms": settings.attempt_timeout_ms,
            "delivery_timeout_ms": NEVER_MS,
            "retry_backoff_ms": 50,
        }

    def carry(self, send: Send) -> bool:
        message = send.message
        try:
            future = self.producer.send(
                self.settings.topic,
                value=message.value,
                key=message.key,
                headers=message.headers,
                partition=partition_of(message.key, self.partitions),
            )
        except MessageSizeTooLargeError as error:
            raise SendRefused(str(error)) from error
        except (KafkaError, AssertionError, ValueError):
            return False
        future.add_both(self.settled, send)
        return True

    def settled(self, send: Send, outcome: Any) -> None:
        if not isinstance(outcome, BaseException):
            self.reports.confirmed(send, outcome.partition, outcome.offset)
            return
        permanent = not isinstance(outcome, RetriableError) and not self.refused
        self.refused = self.refused or permanent
        self.reports.carrier_lost(send, f"{type(outcome).__name__}: {outcome}", permanent, True)

    def release(self) -> None:
        threading.Thread(target=abandon, args=(self.producer,), daemon=True).start()


class ResendCarrier(FuturesCarrier):
    """A new record after each failure."""

    def config(self, bootstrap_servers: str, settings: ProducerSettings) -> dict[str, Any]:
        config = super().config(bootstrap_servers, settings)
        half = settings.attempt_timeout_ms // 2
        return {**config, "request_timeout_ms": half, "delivery_timeout_ms": 2 * half + settings.linger_ms}

    def settled(self, send: Send, outcome: Any) -> None:
        if not isinstance(outcome, BaseException):
            self.reports.confirmed(send, outcome.partition, outcome.offset)
            return
        permanent = isinstance(outcome, AuthorizationError | MessageSizeTooLargeError)
        if not permanent:
            cause = Cause.TIME_OUT if isinstance(outcome, KafkaTimeoutError) else Cause.BROKER
            self.reports.try_failed(send, cause, repr(outcome), time.monotonic() * 1_000, True)
        self.reports.carrier_lost(send, repr(outcome), permanent, False)


class TransactionCarrier(FuturesCarrier):
    """Whatever waits goes as one transaction."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.producer.init_transactions()
        self.queue: queue.SimpleQueue[Send | None] = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def config(self, bootstrap_servers: str, settings: ProducerSettings) -> dict[str, Any]:
        return {**super().config(bootstrap_servers, settings), "transactional_id": f"variant-{settings.topic}"}

    def carry(self, send: Send) -> bool:
        self.queue.put(send)
        return True

    def release(self) -> None:
        self.queue.put(None)

    def run(self) -> None:
        while (first := self.queue.get()) is not None:
            batch = [first]
            while len(batch) < 1_000 and not self.queue.empty():
                if (more := self.queue.get()) is not None:
                    batch.append(more)
            committing = False
            try:
                self.producer.begin_transaction()
                futures = [
                    self.producer.send(
                        self.settings.topic,
                        value=send.message.value,
                        key=send.message.key,
                        headers=send.message.headers,
                        partition=partition_of(send.message.key, self.partitions),
                    )
                    for send in batch
                ]
                records = [future.get(timeout=self.settings.attempt_timeout_ms / 1_000) for future in futures]
                committing = True
                self.producer.commit_transaction()
            except Exception as error:  # noqa: BLE001
                # Not aborted here: the next generation's init_transactions aborts it.
                for send in batch:
                    self.reports.carrier_lost(send, repr(error), False, committing)
                break
            for send, record in zip(batch, records, strict=True):
                self.reports.confirmed(send, record.partition, record.offset)
        abandon(self.producer)


VARIANTS = {"today": KafkaCarrier, "futures": FuturesCarrier, "resend": ResendCarrier, "transactions": TransactionCarrier}


def make_topic(broker: EmbeddedKafka, name: str, **config: str) -> ProducerSettings:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=config)])
    admin.close()
    return ProducerSettings(topic=name, throttle_topic="nobody")


def copies(broker: EmbeddedKafka, topic: str) -> Counter[str]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=None, isolation_level="read_committed")
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    found: Counter[str] = Counter()
    idle = 0
    while idle < 8:
        batch = consumer.poll(timeout_ms=250)
        idle = 0 if batch else idle + 1
        for records in batch.values():
            found.update(dict(record.headers)["message-id"].decode() for record in records)
    consumer.close()
    return found


def open_producer(broker: EmbeddedKafka, variant: str, settings: ProducerSettings, **options: Any) -> Producer:
    carriers.KafkaCarrier = VARIANTS[variant]  # type: ignore[misc, assignment]
    return Producer(broker.bootstrap_servers, settings=settings, registry=CollectorRegistry(), **options)


def speed(broker: EmbeddedKafka, variant: str, topic: str, messages: int) -> dict[str, float]:
    with open_producer(broker, variant, make_topic(broker, topic)) as producer:
        producer.send("warm-up", "a/b", b"x")
        for future in [producer.send_async(f"client-{n % 50}", "a/b", b"x" * 100) for n in range(2_000)]:
            future.result()
        started, cpu = time.monotonic(), time.process_time()
        futures = [producer.send_async(f"client-{n % 50}", "a/b", b"x" * 100) for n in range(messages)]
        for future in futures:
            future.result()
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        alone = []
        for _ in range(200):
            began = time.monotonic()
            producer.send("client", "a/b", b"x")
            alone.append((time.monotonic() - began) * 1_000)
    return {"sends_per_s": messages / seconds, "cpu_s": cpu, "send_p50_ms": sorted(alone)[100]}


def faults(broker: EmbeddedKafka, variant: str, topic: str, fault: str) -> dict[str, Any]:
    """5,000 paced sends; meanwhile the broker is frozen for 6 s, or killed and started again. Attempts of 1 s, or of 8 s."""
    settings = make_topic(broker, topic)
    attempt_ms = 1_000 if fault == "frozen" else 8_000
    outcomes: dict[str, BaseException | None] = {}
    attempts: Counter[str] = Counter()
    limits = {"max_payload_bytes": 20_000_000, "max_pending_bytes": 100_000_000, "max_pending_messages": 500}
    with open_producer(broker, variant, settings, attempt_timeout_ms=attempt_ms, **limits) as producer:
        producer.send("warm-up", "a/b", b"x", message_id="warm-up")

        def load() -> None:
            futures = {}
            for number in range(5_000):
                futures[f"m{number}"] = producer.send_async(f"client-{number % 50}", "a/b", b"x", message_id=f"m{number}")
                time.sleep(0.001)
            for message_id, future in futures.items():
                error = outcomes[message_id] = future.exception()
                tried = error.attempts if isinstance(error, SendFailed) else future.result().attempts
                attempts.update(str(attempt.cause) for attempt in tried if attempt.cause is not None)

        thread = threading.Thread(target=load)
        thread.start()
        time.sleep(2.0)
        if fault == "frozen":
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(6.0)
            os.kill(broker.pid, signal.SIGCONT)
        elif fault == "killed":
            broker.kill()
            broker.start()
        else:
            large = producer.send_async("client-large", "a/b", b"x" * 18_000_000)
            large.exception()
        thread.join()
    log = copies(broker, topic)
    counts: Counter[str] = Counter()
    for message_id, error in outcomes.items():
        if error is None:
            counts["confirmed"] += 1
            counts["confirmed, twice in the log"] += log[message_id] > 1
            counts["confirmed, not in the log"] += log[message_id] == 0
        elif isinstance(error, SendFailed):
            kind = "may be sent" if error.may_be_sent else "not sent"
            counts[kind] += 1
            counts[f"{kind}, in the log"] += log[message_id] > 0
            counts[f"{kind}, twice in the log"] += log[message_id] > 1
    return {**{name: count for name, count in counts.items() if count}, "failed attempts": dict(attempts)}


def too_few_replicas(broker: EmbeddedKafka, variant: str, topic: str) -> dict[str, Any]:
    """Twenty sends to a topic whose leader refuses every record for now."""
    settings = make_topic(broker, topic, **{"min.insync.replicas": "2"})
    with open_producer(broker, variant, settings, attempt_timeout_ms=1_000) as producer:
        time.sleep(3.0)
        began = time.monotonic()
        errors = [producer.send_async(f"client-{number}", "a/b", b"x").exception() for number in range(20)]
        seconds = time.monotonic() - began
    failures = [error for error in errors if isinstance(error, SendFailed)]
    attempts = Counter(str(attempt.cause) for failure in failures for attempt in failure.attempts)
    first = failures[0].attempts[-1].error if failures else None
    return {"failed": len(failures), "seconds": round(seconds, 1), "failed attempts": dict(attempts), "says": first}


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka(Path(directory), jars=ensure_jars()) as broker:
        for turn in range(rounds):
            for variant in VARIANTS:
                result = speed(broker, variant, f"speed-{variant}-{turn}", messages)
                print(json.dumps({"variant": variant, **{name: round(value, 2) for name, value in result.items()}}), flush=True)
        for variant in VARIANTS:
            print(json.dumps({"variant": variant, "replicas": too_few_replicas(broker, variant, f"few-{variant}")}), flush=True)
        for fault in ("frozen", "killed", "too-large"):
            for variant in VARIANTS:
                print(json.dumps({"variant": variant, fault: faults(broker, variant, f"{fault}-{variant}", fault)}), flush=True)


if __name__ == "__main__":
    main()
