"""Says where a message is now, and what its client's connection has to do with it."""

from collections.abc import Sequence

from inflight.status.client import client_view, connection_sentence
from state.errors import InflightError
from streaming.config.settings import Settings
from streaming.history.message_fates import fates
from streaming.history.trace import TraceStep


def fate_sentences(settings: Settings, steps: Sequence[TraceStep]) -> list[str]:
    """Returns a sentence for each client of a message. steps: of its trace, oldest first."""
    return [
        f"{fate.sentence}; {known}"
        if fate.whereabouts.is_with_session and (known := _connection_of(settings, fate.client_id))
        else fate.sentence
        for fate in fates(steps)
    ]


def _connection_of(settings: Settings, client_id: str) -> str:
    """Returns whether the client is connected, or why not; empty if that cannot be read from here."""
    try:
        return connection_sentence(client_view(settings, client_id, lambda done, total: None))
    except InflightError:
        return ""
