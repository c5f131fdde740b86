"""How a producer of kafka-python is let go. Read against kafka-python 3.0.12; read it again with every new version.

After a batch that expired while it was being retried, and after a record that the broker found too large, such a producer neither
confirms nor fails what it is given later (it forgets its producer id, and asks for one only once). Whoever keeps one for long
replaces it after any failure.

`KafkaProducer.close` flushes first, whatever its timeout, and a flush with undecided records ends in KafkaTimeoutError before
anything is closed: the thread goes on, and may go on sending. The destructor calls `close` once more, at any later moment, and
raises there. No public method does better, so `abandon` touches two private parts: the thread (`_sender`), which can be told to
fail what is undecided and to end, and the mark that there is nothing left to close (`_closed`).
"""

from typing import Final

import structlog
from kafka import KafkaProducer
from kafka.errors import IllegalStateError, KafkaTimeoutError

_log: Final = structlog.get_logger(__name__)
_JOIN_S: Final = 10.0


def abandon(producer: KafkaProducer) -> None:
    """Ends a producer at once, also one whose records are undecided; their futures fail. Blocks for seconds at most."""
    sender = producer._sender
    sender.force_close()
    sender.join(_JOIN_S)  # it has failed what was undecided, so the flush in `close` finds nothing to wait for
    try:
        producer.close(timeout=0)
    except (KafkaTimeoutError, IllegalStateError) as error:
        producer._closed = True  # else the destructor flushes and raises
        _log.info("producer_left_open", error=repr(error))
