"""The ACLs that docs/operate/install.md lists, as data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PAGE: Final = Path(__file__).parents[4] / "docs" / "operate" / "install.md"
_RESOURCES: Final = {"topic": "topic", "group": "group", "transactional id": "transactionalid"}
_ROW: Final = re.compile(
    rf"\| (?P<who>[a-z, ]+) \| (?P<kind>{'|'.join(_RESOURCES)}) (?P<names>[^|]*?) ?\| (?P<operations>[A-Za-z, ]+) \|"
)


@dataclass(frozen=True, order=True, kw_only=True)
class Rule:
    """resource: topic, group, transactionalid. operation: as Kafka's documentation writes it, e.g. DescribeConfigs."""

    principal: str
    resource: str
    name: str
    operation: str


def documented(prefix: str, names: Mapping[str, str]) -> list[Rule]:
    """prefix: of the topics, `PREFIX` on the page. names: what else stands for a name there."""
    found = []
    for line in _PAGE.read_text(encoding="utf-8").splitlines():
        if row := _ROW.match(line):
            found += [
                Rule(principal=who, resource=_RESOURCES[row["kind"]], name=_resolved(name, prefix, names), operation=operation)
                for who in row["who"].split(", ")
                for name in re.findall(r"`([^`]+)`", row["names"])
                for operation in row["operations"].split(", ")
            ]
    return found


def _resolved(name: str, prefix: str, names: Mapping[str, str]) -> str:
    return names.get(name, name.replace("PREFIX", prefix))
