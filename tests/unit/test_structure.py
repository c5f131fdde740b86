"""The drawn structure: rooms of a size that can be looked over, no circle between modules, no arrow up between rooms."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("inflight", "streaming", "sinks", "state")
"""Top first: a room may import those to its right."""
MOST_ENTRIES = 15


def modules() -> dict[str, Path]:
    """Dotted name and file of every module of the four packages; a package is named by its folder."""
    found: dict[str, Path] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported_by(path: Path) -> Iterator[str]:
    """The modules of the four packages that a file imports anywhere in it, also for type checking only."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            known = name if name in MODULES else name.rpartition(".")[0]
            if known in MODULES:
                yield known


IMPORTS = {name: {target for target in imported_by(path) if target != name} for name, path in MODULES.items()}


def folders() -> list[Path]:
    return sorted({path.parent for path in MODULES.values()})


def entries(folder: Path) -> list[str]:
    """Modules and packages in a folder. `__init__.py` and data files are not counted."""
    modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    packages = [path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    return sorted(modules + packages)


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_can_be_looked_over(folder: Path) -> None:
    assert len(entries(folder)) <= MOST_ENTRIES, entries(folder)


def test_no_room_imports_one_above_it() -> None:
    rank = {room: place for place, room in enumerate(ROOMS)}
    up = [
        f"{name} imports {target}"
        for name, targets in IMPORTS.items()
        for target in sorted(targets)
        if rank[target.partition(".")[0]] < rank[name.partition(".")[0]]
    ]
    assert up == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """What a module imports for type checking only counts, too: a reader follows those arrows as well."""
    assert circles(IMPORTS) == []


def test_a_circle_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other, each sorted."""
    reach: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        waiting = list(arrows[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += arrows.get(name, ())
        reach[start] = seen
    groups = {tuple(sorted(b for b in arrows if b in reach[a] and a in reach[b])) for a in arrows if a in reach[a]}
    return [list(group) for group in sorted(groups)]
