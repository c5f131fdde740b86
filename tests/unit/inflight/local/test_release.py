"""Problems that stand against a release, and the notes that it gets."""

from pathlib import Path

import pytest

from inflight.local.release import ROOT, notes, problems, version_of


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A checkout that could be released as 1.2.3."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.3 (2027-01-31)\n\n- new\n\n## 1.2.2 (2027-01-01)\n\n- old\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: Inflight 1.2.3\ncopyright: Inflight 1.2.3, Apache License 2.0\n")
    (tmp_path / "SECURITY.md").write_text("| 1.2.x, the newest one | yes |\n")
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_nothing_stands_against_a_release_that_agrees(release: Path) -> None:
    assert list(problems(release, [], is_draft=False)) == []


@pytest.mark.parametrize("is_draft", [True, False])
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("CHANGELOG.md", "## 1.2.3 (2027-01-31)", "## 1.2.4 (2027-01-31)"),
        ("CHANGELOG.md", "## 1.2.3 (2027-01-31)", "## 1.2.3"),
        ("mkdocs.yml", "site_name: Inflight 1.2.3", "site_name: Inflight 1.2.2"),
        ("SECURITY.md", "1.2.x", "1.1.x"),
    ],
)
def test_a_file_with_another_version_stands_against_it(release: Path, file: str, old: str, new: str, is_draft: bool) -> None:
    replace(release / file, old, new)
    (problem,) = problems(release, [], is_draft=is_draft)
    assert file in problem


def test_only_a_draft_may_be_without_a_date_and_a_commit(release: Path) -> None:
    replace(release / "CHANGELOG.md", "2027-01-31", "unreleased")
    assert list(problems(release, ["a.py"], is_draft=True)) == []
    date, commit = problems(release, ["a.py"], is_draft=False)
    assert "unreleased" in date
    assert "a.py" in commit


def test_the_notes_are_the_section_of_the_version(release: Path) -> None:
    assert notes(release) == "# Inflight 1.2.3\n\n- new\n"
    replace(release / "pyproject.toml", "1.2.3", "1.2.2")
    assert notes(release) == "# Inflight 1.2.2\n\n- old\n"
    replace(release / "pyproject.toml", "1.2.2", "1.2.1")
    with pytest.raises(ValueError, match=r"no section of 1\.2\.1"):
        notes(release)


def test_the_present_checkout_could_be_a_draft() -> None:
    assert list(problems(ROOT, [], is_draft=True)) == []
    assert notes(ROOT).startswith(f"# Inflight {version_of(ROOT)}\n\n")
