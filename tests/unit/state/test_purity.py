"""The session is a function of (session, event, time): nothing in `state` can read a clock, a random number or the world."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import state

ROOT = Path(next(iter(state.__path__)))
SOURCES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")

WORLD = ("pyspark", "delta", "pandas", "pyarrow", "numpy", "kafka", "paho", "mqtt5", "structlog", "prometheus_client")
CLOCKS_AND_CHANCE = {"time", "datetime", "random", "secrets", "uuid", "os", "logging", "socket", "asyncio", "threading"}
BUILTINS = {
    "hash": "differs between processes (PYTHONHASHSEED): a re-executed batch would give other commands",
    "id": "differs between processes",
    "open": "is I/O",
    "print": "is I/O",
    "input": "is I/O",
}


def module(source: Path) -> str:
    return ".".join(("state", *source.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.processes
def test_importing_state_loads_no_input_or_output() -> None:
    modules = [module(source) for source in SOURCES]
    script = f"""
import sys
for module in {modules!r}:
    __import__(module)
print(*sorted(sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent, timeout=60)
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "state" in loaded
    assert loaded.isdisjoint(WORLD)


@pytest.mark.parametrize("source", SOURCES, ids=module)
def test_no_module_of_state_uses_a_clock_or_chance(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.Import(names=names):
                imported = {alias.name.split(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module)):
                imported = {module.split(".")[0]}
            case _:
                imported = set()
        assert imported.isdisjoint(CLOCKS_AND_CHANCE), f"{source.name} imports {imported}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in BUILTINS, f"{source.name}:{node.lineno}: {node.func.id}() {BUILTINS[node.func.id]}"


@pytest.mark.parametrize("source", SOURCES, ids=module)
def test_no_module_of_state_iterates_over_a_set_to_make_something(source: Path) -> None:
    """The order of a set of texts differs between processes, and commands have an order."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.For | ast.comprehension):
            assert not isinstance(node.iter, ast.Set | ast.SetComp), f"{source.name}:{ast.unparse(node.iter)}"
            called = node.iter.func.id if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) else ""
            assert called not in ("set", "frozenset"), f"{source.name}:{ast.unparse(node.iter)}"
