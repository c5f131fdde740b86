"""The documents tell the truth: what docs/spec_compliance.md names exists, and what is generated is fresh."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMPLIANCE = ROOT / "docs" / "spec_compliance.md"
TAG = re.compile(r"\[MQTT-[0-9.]+-[0-9]+\]")


def compliance_rows() -> list[list[str]]:
    """(statement or case, in words, enforced in, proved by) of every row."""
    lines = [line for line in COMPLIANCE.read_text().splitlines() if line.startswith("| ")]
    lines = [line for line in lines if not line.startswith(("| statement |", "| case |"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ROWS = compliance_rows()


def names_of_tests() -> set[str]:
    """Every test function, and every test case that a state machine is assigned to."""
    names: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(name)
                case _:
                    pass
    return {name for name in names if name.startswith(("test_", "Test"))}


NAMES = names_of_tests()


def test_the_table_has_its_four_columns_and_no_statement_twice() -> None:
    assert len(ROWS) > 150
    assert all(len(row) == 4 for row in ROWS), [row for row in ROWS if len(row) != 4]
    statements = [row[0] for row in ROWS]
    assert sorted(set(statements)) == sorted(statements)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("[]"))
def test_what_a_row_names_exists_and_carries_the_statement(row: list[str]) -> None:
    statement, _, enforced_in, proved_by = row
    tests = re.findall(r"`(test_\w+|Test\w+)`", proved_by)
    assert set(tests) <= NAMES, "names a test that does not exist"
    if enforced_in == "—":
        assert proved_by.startswith("not applicable: "), "say why it is not applicable"
        return
    assert tests, "names no test"
    paths = re.findall(r"`([\w/]+\.py)`", enforced_in)
    assert ", ".join(f"`{path}`" for path in paths) == enforced_in, "names something else than modules"
    for path in paths:
        assert (ROOT / path).is_file(), f"{path} does not exist"
        if statement.startswith(("[MQTT", "MQTT 5,")):
            assert statement in (ROOT / path).read_text(), f"{path} does not carry {statement} at the line that enforces it"


def test_every_tag_in_the_code_has_its_row() -> None:
    """A statement that the session or the gateway claims to keep is traced."""
    listed = {tag for row in ROWS for tag in TAG.findall(" ".join(row))}
    modules = sorted((ROOT / "state").glob("*.py")) + sorted((ROOT / "sinks" / "mqtt").glob("*.py"))
    # A number of MQTT 3.1.1 says so behind it.
    claimed = {tag for path in modules for tag in TAG.findall(re.sub(rf"{TAG.pattern} of MQTT 3.1.1", "", path.read_text()))}
    assert claimed <= listed, sorted(claimed - listed)


@pytest.mark.processes
def test_the_state_diagram_is_fresh() -> None:
    generator = ROOT / "docs" / "generate_state_diagram.py"
    run = subprocess.run([sys.executable, generator, "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
