"""One rule, one place: phases are read and changed by the tables and their three owners only.

That every row is what happens is in tests/spec/test_transition_tables.py; that the tables are total, in
tests/properties/test_transitions.py.
"""

import ast
from pathlib import Path

import pytest

import state

ROOT = Path(next(iter(state.__path__)))
TABLES = "transitions.py"
OWNERS = ("outbound/inflight_window.py", "inbound/awaiting_rel.py", "outbound/packet_ids.py")
CODEC = "session_codec.py"
"""Stores a phase as a number and restores it."""

OTHERS = sorted(
    name
    for path in ROOT.rglob("*.py")
    if path.name != "__init__.py" and (name := path.relative_to(ROOT).as_posix()) not in (TABLES, *OWNERS, CODEC)
)


def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text())


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_module_names_a_phase_or_asks_a_table(name: str) -> None:
    names = {node.id for node in ast.walk(tree(name)) if isinstance(node, ast.Name)}
    assert names.isdisjoint({"OutboundPhase", "InboundPhase", "AbandonedPhase", "OUTBOUND", "INBOUND", "ABANDONED"})
    assert names.isdisjoint({"outbound_step", "late_outbound_step", "inbound_step", "abandoned_step"})


@pytest.mark.parametrize("name", [*OTHERS, CODEC])
def test_no_other_module_compares_or_sets_a_phase(name: str) -> None:
    for node in ast.walk(tree(name)):
        match node:
            case ast.Compare(left=left, comparators=compared):
                read = [part for side in (left, *compared) for part in ast.walk(side)]
            case ast.Assign(targets=targets):
                read = [part for target in targets for part in ast.walk(target)]
            case ast.Match(subject=subject):
                read = list(ast.walk(subject))
            case _:
                continue
        assert not any(isinstance(part, ast.Attribute) and part.attr == "phase" for part in read), ast.unparse(node)


def test_one_statement_sets_the_phase_of_an_exchange() -> None:
    written = [
        ast.unparse(node)
        for node in ast.walk(tree(OWNERS[0]))
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Attribute) and to.attr == "phase" for to in node.targets)
    ]
    assert written == ["entry.phase = target"]
