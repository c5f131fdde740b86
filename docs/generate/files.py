"""Lists the generated files: the path of each from the root, and the function that returns its text."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.generate import (
    alerts,
    codes,
    commands,
    configuration,
    drawings,
    errors,
    facts,
    python_api,
    receipts,
    records,
    state_diagram,
)

ROOT: Final = Path(__file__).parent.parent.parent

FILES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/reference/configuration.md": configuration.page,
    "docs/reference/commands.md": commands.page,
    "docs/reference/records.md": records.page,
    "docs/reference/receipt.schema.json": receipts.schema,
    "docs/reference/codes.md": codes.page,
    "docs/reference/alerts.md": alerts.page,
    "docs/reference/python.md": python_api.page,
    "docs/reference/errors.md": errors.page,
    "docs/reference/log_events.md": errors.events_page,
    "docs/pictures/architecture.svg": drawings.architecture,
    "docs/pictures/ways.svg": drawings.ways,
    "docs/pictures/to_the_client.svg": drawings.outbound,
    "docs/pictures/from_the_client.svg": drawings.inbound,
    "docs/pictures/given_up.svg": drawings.abandoned,
    "docs/how/theory_of_operation.md": state_diagram.page,
    "docs/project/facts.txt": facts.page,
}


def stale() -> dict[str, str]:
    """Returns the new text of each file that differs from what its function returns."""
    made = {path: make() for path, make in FILES.items()}
    return {path: text for path, text in made.items() if not (ROOT / path).exists() or (ROOT / path).read_text("utf-8") != text}
