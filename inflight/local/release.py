"""Checks and describes a release for `make release`; it builds and publishes nothing.

    python -m inflight.local.release check [--draft]     # exit code 1 if the files do not agree on a release
    python -m inflight.local.release version
    python -m inflight.local.release notes               # the section of CHANGELOG.md, as the notes of the release

A release has one version in every file that names it, a date in CHANGELOG.md, and no change that is not committed. A draft may
lack the last two.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from streaming.terminal import say

ROOT: Final = Path(__file__).parents[2]
_HEADING: Final = re.compile(r"^## (\S+) \((.+)\)$", re.MULTILINE)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_SITE: Final = re.compile(r"Inflight (\d[^\s,]*)")


def version_of(root: Path) -> str:
    version: str = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def problems(root: Path, changed: Sequence[str], *, is_draft: bool) -> Iterator[str]:
    """Yields what stands against a release, for people, with what to do.

    Args:
        changed: Files with changes that are not committed.
        is_draft: The date and the commit may be missing.
    """
    version = version_of(root)
    newest = _HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if newest is None or newest[1] != version:
        yield f"the first section of CHANGELOG.md is not `## {version} (DATE)`: write it, or set version in pyproject.toml"
    elif not is_draft and not _DATE.fullmatch(newest[2]):
        yield f"CHANGELOG.md calls {version} {newest[2]}: write the date of the release there, as 2027-01-31"
    named = set(_SITE.findall((root / "mkdocs.yml").read_text(encoding="utf-8")))
    if named != {version}:
        yield f"mkdocs.yml names version {', '.join(sorted(named)) or 'none'} instead of {version}"
    if f"| {version.rpartition('.')[0]}.x, the newest one |" not in (root / "SECURITY.md").read_text(encoding="utf-8"):
        yield f"SECURITY.md does not say that {version} is supported"
    if changed and not is_draft:
        yield f"these files have changes that are not committed: {', '.join(sorted(changed)[:10])}"


def notes(root: Path) -> str:
    """Returns the section of the version in CHANGELOG.md, without its heading. Raises ValueError if there is none."""
    text, version = (root / "CHANGELOG.md").read_text(encoding="utf-8"), version_of(root)
    sections = list(_HEADING.finditer(text))
    for number, section in enumerate(sections):
        if section[1] == version:
            end = sections[number + 1].start() if number + 1 < len(sections) else len(text)
            return f"# Inflight {version}\n\n{text[section.end() : end].strip()}\n"
    raise ValueError(f"CHANGELOG.md has no section of {version}")


def changed_files(root: Path) -> list[str]:
    """Returns the files that git calls changed or untracked."""
    asked = ["git", "-C", str(root), "status", "--porcelain"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    return [line[3:] for line in said.splitlines()]


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["check", *options]:
            found = list(problems(ROOT, changed_files(ROOT), is_draft="--draft" in options))
            for problem in found:
                say(problem, err=True)
            return bool(found)
        case ["version"]:
            say(version_of(ROOT))
        case ["notes"]:
            say(notes(ROOT).rstrip("\n"))
        case _:
            say(__doc__ or "", err=True)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
