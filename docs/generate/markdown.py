"""Helpers of the generated pages."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

NOTE: Final = "<!-- made by `make references`; do not edit -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell(text) for text in line)} |" for line in lines)


def cell(text: str) -> str:
    """Returns a text without what would end its cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Returns a text as code, or nothing for an empty one."""
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """Returns a fragment as a sentence."""
    text = " ".join(text.split())
    return text if not text else text[0].upper() + text[1:] + ("" if text[-1] in ".:!?" else ".")


def linked(text: str) -> str:
    """Returns a text whose citations of pages are links from a page of the reference, and those of modules are left out."""
    text = re.sub(r"\s\((?:state|sinks|streaming|inflight)/[\w/]+\.py\)", "", text)
    return re.sub(r"docs/([\w/]+/)?([\w-]+\.md)", lambda page: f"[{page[2]}](../{page[1] or ''}{page[2]})", text)


def first_paragraph(document: str | None) -> str:
    """Returns the first paragraph of a docstring, in one line."""
    return " ".join((document or "").strip().partition("\n\n")[0].split())
