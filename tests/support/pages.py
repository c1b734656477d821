"""Finds the pages of the documentation, their anchors and their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

FENCED = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"``.+?``|`[^`\n]+`")
ANCHOR = re.compile(r'<a id="([^"]+)">')
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def pages() -> list[Path]:
    """All pages of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def read_text(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", page.read_text())


@cache
def read_anchors(page: Path) -> frozenset[str]:
    """The targets of `page.md#…`: anchors in the text, and headings."""
    return frozenset(find_anchors(read_text(page)))


def find_anchors(text: str) -> Iterator[str]:
    """All anchors, including repeated ones. If headings have the same words, the later ones get a number."""
    yield from ANCHOR.findall(text)
    met: dict[str, int] = {}
    for heading in HEADING.findall(text):
        slug = _slug(heading)
        met[slug] = met.get(slug, -1) + 1
        yield f"{slug}-{met[slug]}" if met[slug] else slug


def read_links(page: Path) -> list[str]:
    """The relative links of a page."""
    return LINK.findall(CODE.sub("", read_text(page)))


def _slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
