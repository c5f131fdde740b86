"""Records of `inflight.dead-letters` and of the other topics that bindings send dead letters to."""

from typing import Final

DETAIL: Final = "x-detail"
TRUNCATED: Final = "x-truncated-from-bytes"
TABLE: Final = "x-dead-letter-table"
"""Which table of the archive a binding to `table:NAME` means; such a dead letter goes through the dead-letter topic."""
