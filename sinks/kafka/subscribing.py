"""Subscribing a consumer of kafka-python."""

import threading
import time
from collections.abc import Collection
from typing import Any, Final

from kafka import ConsumerRebalanceListener

_METADATA_PAUSE_S: Final = 0.2


def subscribe(
    consumer: Any,
    topics: Collection[str],
    *,
    listener: ConsumerRebalanceListener | None = None,
    stopping: threading.Event | None = None,
) -> bool:
    """Subscribe, and wait until the consumer knows the partitions. False: stopping was set before that.

    kafka-python 3.0 asks for the partitions of new topics by a flag. An answer that is on its way at that moment, to a question
    that did not have the topics, clears it, and the consumer learns of them with the next regular question, after five minutes:
    until then it reads nothing, and as the member of a group that shares the partitions out it shares out none. What it has
    learnt before `subscribe` does not count.
    """
    consumer.subscribe(list(topics), listener=listener)
    while not set(topics) <= consumer.topics():
        if stopping is None:
            time.sleep(_METADATA_PAUSE_S)
        elif stopping.wait(_METADATA_PAUSE_S):
            return False
    return True
