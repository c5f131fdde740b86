"""Writes the tables of state/transitions.py into docs/how/theory_of_operation.md, as pictures and lists."""

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

from state.transitions import ABANDONED, INBOUND, OUTBOUND, AbandonedPhase, InboundPhase, OutboundPhase

PAGE = Path(__file__).parent.parent / "how" / "theory_of_operation.md"
BEGIN = "<!-- made by `make references`: begin -->"
END = "<!-- made by `make references`: end -->"


def rows(table: Mapping[tuple[Enum, Enum], tuple[Enum, Enum]], absent: Enum) -> Iterator[str]:
    """Yields the rows that the picture leaves out."""
    yield ""
    for (phase, event), (target, action) in table.items():
        if phase is absent and target is absent:
            yield f"- {event.name} for an id without an exchange: {action.name}"
    errors = [f"{event.name} in {phase.name}" for (phase, event), (_, action) in table.items() if action.name == "PROTOCOL_ERROR"]
    if errors:
        yield f"- PROTOCOL_ERROR: {', '.join(errors)}"


def generated() -> str:
    """Returns the text between the markers."""
    return "\n".join(
        [
            "",
            "Session → client, per packet id:",
            "",
            "![The phases of an exchange towards the client](../pictures/to_the_client.svg)",
            *rows(OUTBOUND, OutboundPhase.ABSENT),
            "",
            "Client → session, QoS 2, per packet id:",
            "",
            "![The phases of a publication of QoS 2](../pictures/from_the_client.svg)",
            *rows(INBOUND, InboundPhase.ABSENT),
            "",
            "Exchanges of messages that were given up, per packet id:",
            "",
            "![The phases of an exchange that was given up](../pictures/given_up.svg)",
            *rows(ABANDONED, AbandonedPhase.ABSENT),
            "",
            "",
        ]
    )


def page() -> str:
    """Returns the up-to-date page."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{generated()}{END}{after}"
