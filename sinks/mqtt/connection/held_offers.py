"""Holds offers of routers that a connection cannot accept yet, in the order of their offsets.

An offer that is held is one that comes late: the chain decides about it as about any other (fast_path.py). So an offer may be
forgotten at any time, which costs latency only.
"""

from typing import Final

from sinks.mqtt.limits.buffered import SCARCE_PART
from state.commands import OfferPublish

_OFFER_BYTES: Final = 512
"""Memory that an offer takes besides its text."""


class HeldOffers:
    """Offers of one partition.

    Args:
        max_bytes: Beyond, no offer is added. The oldest ones stay, because the chain continues with them.

    Attributes:
        offers: To read only. Whether there is any may be asked on any thread.
        size_bytes: The memory that they take.
        is_scarce: Only a part of max_bytes may be held (sinks/mqtt/limits/buffered.py).
    """

    __slots__ = ("_max_bytes", "is_scarce", "offers", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.is_scarce = False
        self.offers: list[OfferPublish] = []  # a deque takes 760 bytes while it is empty, for each connection
        self.size_bytes = 0

    def is_known(self, offer: OfferPublish) -> bool:
        """Returns True if this offer or a later one of its partition is held."""
        if not self.offers:
            return False
        partition, offset = self.offers[-1].position
        return partition == offer.position.partition and offset >= offer.position.offset

    def add(self, offer: OfferPublish) -> bool:
        """Adds an offer that is not known. One of another partition replaces all. Returns False if there is no room."""
        offers = self.offers
        if offers and offers[-1].position.partition != offer.position.partition:
            self.clear()
        size_bytes = _size_bytes(offer)
        max_bytes = self._max_bytes // SCARCE_PART if self.is_scarce else self._max_bytes
        if offers and self.size_bytes + size_bytes > max_bytes:
            return False
        offers.append(offer)
        self.size_bytes += size_bytes
        return True

    def remove_first(self) -> None:
        self.size_bytes -= _size_bytes(self.offers.pop(0))

    def forget(self, partition: int, offset: int) -> None:
        """Removes the offers of a partition up to an offset."""
        offers = self.offers
        while offers and offers[0].position.partition == partition and offers[0].position.offset <= offset:
            self.remove_first()

    def clear(self) -> None:
        self.offers.clear()
        self.size_bytes = 0


def _size_bytes(offer: OfferPublish) -> int:
    headers_bytes = sum(len(name) + len(value or b"") for name, value in offer.headers)
    return _OFFER_BYTES + len(offer.payload) + headers_bytes + len(offer.recipient or b"")
