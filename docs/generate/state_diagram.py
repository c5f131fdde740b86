"""Writes the tables of state/transitions.py into docs/how/theory_of_operation.md, as diagrams and lists."""

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

from state.transitions import ABANDONED, INBOUND, OUTBOUND, AbandonedPhase, InboundPhase, OutboundPhase

PAGE = Path(__file__).parent.parent / "how" / "theory_of_operation.md"
BEGIN = "<!-- made by `make references`: begin -->"
END = "<!-- made by `make references`: end -->"


def diagram(table: Mapping[tuple[Enum, Enum], tuple[Enum, Enum]], absent: Enum) -> Iterator[str]:
    """Yields the lines of one Mermaid state diagram.

    A label reads: trigger / action of the session. Protocol errors are left out, because they close the connection and change no
    phase. An exchange begins and ends at the black dots.
    """
    yield "```mermaid"
    yield "stateDiagram-v2"
    for (phase, event), (target, action) in table.items():
        if action.name == "PROTOCOL_ERROR" or (phase is absent and target is absent):
            continue
        source_name, target_name = ("[*]" if end is absent else end.name for end in (phase, target))
        yield f"    {source_name} --> {target_name}: {event.name} / {action.name}"
    yield "```"


def rows(table: Mapping[tuple[Enum, Enum], tuple[Enum, Enum]], absent: Enum) -> Iterator[str]:
    """Yields the rows that the diagram leaves out."""
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
            *diagram(OUTBOUND, OutboundPhase.ABSENT),
            *rows(OUTBOUND, OutboundPhase.ABSENT),
            "",
            "Client → session, QoS 2, per packet id:",
            "",
            *diagram(INBOUND, InboundPhase.ABSENT),
            *rows(INBOUND, InboundPhase.ABSENT),
            "",
            "Exchanges of messages that were given up, per packet id:",
            "",
            *diagram(ABANDONED, AbandonedPhase.ABSENT),
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
