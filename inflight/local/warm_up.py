"""`python -m inflight.local.warm_up DIRECTORY`: runs Kafka and the engine until one message has gone through, and stops them.

inflight/local/class_data_sharing.py runs it: by then a JVM has loaded every class that the way of a message needs.
"""

import sys
import threading
from pathlib import Path
from typing import Final

from kafka import KafkaProducer

from inflight.local.embedded_kafka import EmbeddedKafka
from inflight.local.jars import ensure_jars
from inflight.local.spark_jars import spark_jars
from streaming.config.settings import load_settings
from streaming.engine.run import run_engine
from streaming.spark_internals.jvm import end_jvm
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
        run_engine(settings, jars=spark_jars(), on_ready=stop.set, stop=stop)
        end_jvm(_EXIT_TIMEOUT_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
