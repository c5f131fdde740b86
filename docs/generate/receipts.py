"""Makes the JSON schema of receipts."""

import json

import msgspec

from state.records.receipts import Receipt


def schema() -> str:
    """Returns the text of docs/reference/receipt.schema.json."""
    return json.dumps(msgspec.json.schema(Receipt), indent=2) + "\n"
