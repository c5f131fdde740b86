"""How a producer of kafka-python 3.0 is given up.

After a batch that expired while it was being retried, and after a record that the broker found too large, such a producer neither
confirms nor fails what it is given later, and its `close` raises instead of closing. Whoever keeps one for long replaces it after
any failure.
"""

from typing import Final

import structlog
from kafka import KafkaProducer
from kafka.errors import IllegalStateError, KafkaTimeoutError

_log: Final = structlog.get_logger(__name__)
_JOIN_S: Final = 10.0


def abandon(producer: KafkaProducer) -> None:
    """Closes a producer at once, also one whose records are undecided; their futures fail. Blocks for seconds at most.

    `KafkaProducer.close` waits for them first and raises instead of closing when they do not finish, so its thread is told.
    """
    sender = producer._sender
    sender.force_close()
    sender.join(_JOIN_S)
    try:
        producer.close(timeout=0)
    except (KafkaTimeoutError, IllegalStateError) as error:
        producer._closed = True  # else its __del__ waits and raises once more, at any later moment
        _log.info("producer_left_open", error=repr(error))
