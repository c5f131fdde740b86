"""The identity of the code: the same for the same sources, another for others."""

import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

import state
from streaming.engine.operator import code
from streaming.engine.operator.code import CODE_LENGTH, code_identity

ROOT = Path(state.__file__).parents[1]


def identity_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(code, "files", lambda package: folder / package.replace(".", "/"))
    code_identity.cache_clear()
    try:
        return code_identity()
    finally:
        code_identity.cache_clear()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in ("state/a.py", "state/deep/b.py", "streaming/engine/operator/c.py", "streaming/spark_internals/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    return tmp_path


def test_each_source_counts_and_caches_do_not(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = identity_of(sources, monkeypatch)
    assert len(first) == CODE_LENGTH
    (sources / "state/__pycache__").mkdir()
    (sources / "state/__pycache__/a.cpython-311.pyc").write_bytes(b"x")
    (sources / "state/notes.txt").write_bytes(b"x")
    assert identity_of(sources, monkeypatch) == first
    seen = {first}
    for name in (
        "state/a.py",
        "state/deep/b.py",
        "streaming/engine/operator/c.py",
        "streaming/spark_internals/d.py",
        "state/new.py",
    ):
        (sources / name).write_text("changed", encoding="utf-8")
        seen.add(identity_of(sources, monkeypatch))
    assert len(seen) == 6


@pytest.mark.processes
def test_another_process_and_a_zip_file_on_its_path_have_the_same(tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for package in ("state", "streaming"):
            for path in sorted((ROOT / package).rglob("*.py")):
                file.write(path, path.relative_to(ROOT))
    said = [
        subprocess.run(
            [sys.executable, "-c", "from streaming.engine.operator import code; print(code.__file__, code.code_identity())"],
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(path), "PYTHONHASHSEED": "7"},
        ).stdout.split()
        for path in (archive, ROOT)
    ]
    assert str(archive) in said[0][0]
    assert [identity for _, identity in said] == [code_identity()] * 2
    assert files("state").is_dir()
