"""Helpers around clients of kafka-python. Checked against kafka-python 3.0.12; check them again with every new version.

After a batch that expired while it was being retried, and after a record that the broker found too large, a producer neither
confirms nor fails what it is given later: it forgets its producer id, and asks for one only once. Whoever keeps one for long
replaces it after any failure.
"""

import ssl
import sys
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

import structlog
from kafka import ConsumerRebalanceListener, KafkaProducer
from kafka.errors import (
    IllegalStateError,
    KafkaConnectionError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

_log: Final = structlog.get_logger(__name__)
_JOIN_S: Final = 10.0
_METADATA_PAUSE_S: Final = 0.2


def abandon(producer: KafkaProducer) -> None:
    """Ends a producer at once, even if records of it are undecided; their futures fail. Blocks for seconds at most.

    `KafkaProducer.close` flushes first, whatever its timeout. A flush with undecided records ends in KafkaTimeoutError before
    anything is closed: the thread goes on, and may go on sending. The destructor calls `close` once more, at any later moment,
    and raises there. No public method does better, so this touches two private parts: the thread (`_sender`), which can be told
    to fail what is undecided and to end, and the mark that there is nothing left to close (`_closed`).
    """
    sender = producer._sender
    sender.force_close()
    sender.join(_JOIN_S)  # it has failed what was undecided, so the flush in `close` finds nothing to wait for
    try:
        producer.close(timeout=0)
    except (KafkaTimeoutError, IllegalStateError) as error:
        producer._closed = True  # else the destructor flushes and raises
        _log.info("producer_left_open", error=repr(error))


def subscribe(
    consumer: Any,
    topics: Collection[str],
    *,
    listener: ConsumerRebalanceListener | None = None,
    stopping: threading.Event | None = None,
) -> bool:
    """Subscribes, and waits until the consumer knows the partitions. False: `stopping` was set before that.

    kafka-python 3.0 asks for the partitions of new topics by a flag. An answer that is on its way at that moment, to a question
    that did not have the topics, clears it, and the consumer learns of them with the next regular question, after five minutes.
    Until then it reads nothing, and as the member of a group that assigns the partitions it assigns none. What it has learnt
    before `subscribe` does not count.
    """
    consumer.subscribe(list(topics), listener=listener)
    while not set(topics) <= consumer.topics():
        if stopping is None:
            time.sleep(_METADATA_PAUSE_S)
        elif stopping.wait(_METADATA_PAUSE_S):
            return False
    return True


class FailFastClient(KafkaNetClient):  # type: ignore[misc]
    """Ends the start of a client at once when a broker refuses its login or shows another authority's certificate.

    kafka-python itself tries for half a minute, and then says only that it was unable to bootstrap. Give it as `kafka_client`
    to a client that is made for one question.
    """

    def __init__(self, **configs: Any) -> None:
        net = NetworkSelector(**configs)
        super().__init__(net=net, manager=_FailFastConnections(net, **configs), **configs)


class _FailFastConnections(KafkaConnectionManager):  # type: ignore[misc]
    def __init__(self, *arguments: Any, **configs: Any) -> None:
        super().__init__(*arguments, **configs)
        self._refused: Exception | None = None
        self._errors: list[str] = []
        """Those of all attempts so far, each once."""

    def update_backoff(self, node_id: Any) -> Any:
        """Remembers the error of a connection: kafka-python calls this where it handles one."""
        error = sys.exc_info()[1]
        if error is not None and str(error) not in self._errors:
            self._errors.append(str(error))
        if isinstance(error, SaslAuthenticationFailedError | UnsupportedSaslMechanismError):
            self._refused = error
        elif error is not None and isinstance(error.__context__, ssl.SSLCertVerificationError):
            self._refused = KafkaConnectionError(str(error))
        return super().update_backoff(node_id)

    def get_connection(self, node_id: Any, **options: Any) -> Any:
        if self._refused is not None and self.cluster.is_bootstrap(node_id):
            raise self._refused
        return super().get_connection(node_id, **options)

    async def _build_transport(self, *arguments: Any, **options: Any) -> Any:
        transport = await super()._build_transport(*arguments, **options)
        transport._sock_recv = partial(_data_before_the_end, transport._sock_recv)
        return transport

    async def _do_bootstrap(self, deadline: float | None) -> Any:
        try:
            return await super()._do_bootstrap(deadline)
        except KafkaTimeoutError as error:
            if not self._errors:
                raise
            raise KafkaTimeoutError(f"{error.args[0]}: {'; '.join(self._errors)}") from error


def _data_before_the_end(receive: Callable[[], tuple[bytes, Exception | None]]) -> tuple[bytes, Exception | None]:
    """Receives from a socket, and leaves an error for the next call if there are data.

    A broker ends a connection right behind its refusal of a login. kafka-python drops the refusal if it reads both at once.
    """
    data, error = receive()
    return data, None if data else error
