"""`python -m streaming.warm_up DIRECTORY`: Kafka and the engine run until one message has gone through, and stop.

The program behind streaming/class_archive.py: everything that a JVM needs on the way of a message is loaded then.
"""

import sys
import threading
from pathlib import Path
from typing import Final

from kafka import KafkaProducer
from pyspark import SparkContext

from streaming.embedded_kafka import EmbeddedKafka
from streaming.jars import ensure_jars
from streaming.job import run_engine
from streaming.settings import load_settings
from streaming.topics import ensure_topics

_EXIT_TIMEOUT_S: Final = 120.0


def main(directory: Path) -> None:
    with EmbeddedKafka(directory, jars=ensure_jars()) as kafka:
        overrides = (f"kafka.bootstrap_servers={kafka.bootstrap_servers}", f"engine.data_dir={directory}")
        settings = load_settings(None, overrides)
        ensure_topics(settings)
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        producer.send(settings.topics.messages, b"", key=b"warm-up", headers=[("mqtt-topic", b"warm-up")])
        producer.close()
        stop = threading.Event()
        run_engine(settings, on_ready=stop.set, stop=stop)
        _end_of_jvm()


def _end_of_jvm() -> None:
    """Waits for the JVM, which writes its classes when it ends, and it ends when its standard input does."""
    gateway = SparkContext._gateway
    if gateway is None:
        raise AssertionError("the engine has started a JVM")
    jvm = gateway.proc
    gateway.shutdown()
    jvm.stdin.close()
    jvm.wait(_EXIT_TIMEOUT_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
