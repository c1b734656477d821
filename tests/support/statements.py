"""The statements of the contract in `docs/contract`, and which of them tests cite.

A test cites a statement in its docstring: `(R17, P30)`. Run `python -m tests.support.statements` for the table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONTRACT = TESTS.parent / "docs" / "contract"

AREAS = {
    "R": "registry",
    "P": "publishing",
    "L": "low-level streams",
    "C": "cursors",
    "S": "subscriptions",
    "B": "backups",
    "M": "mirroring",
    "X": "deliveries",
    "D": "declared reads",
    "O": "objectives",
    "E": "CloudEvents",
    "H": "rehearsals",
    "Q": "queries",
    "K": "Spark",
    "T": "tables",
}
FLAGS = ("core", "edge", "internal")

# One item of a list: `- <a id="s188"></a>**S188** *core* If batch_flush_timeout …`
ITEM = re.compile(r'^- <a id="(?P<anchor>[^"]+)"></a>\*\*(?P<number>\S+)\*\* \*(?P<flag>\w+)\* (?P<text>.+)$')
TRAP = re.compile(r'^(?P<number>\d+)\. <a id="trap-(?P=number)"></a>', re.MULTILINE)

LETTERS = "".join(AREAS)
NUMBER = rf"[{LETTERS}]\d+a?"
CITED = re.compile(rf"\b{NUMBER}\b")
BRACKETS = re.compile(rf"\((?:{NUMBER}|traps? \d)[^()]*\)")
RANGE = re.compile(rf"\b([{LETTERS}])(\d+)[-\u2013]\1?(\d+)\b")
TRAPS = re.compile(r"\btraps? (\d+(?:, \d+)*)")


@dataclass(frozen=True)
class Statement:
    number: str
    flag: str
    anchor: str
    page: str
    text: str

    @property
    def area(self) -> str:
        return self.number[0]


@dataclass(frozen=True)
class Citation:
    """A citation in the docstring of a test: a statement such as `S188`, or a trap of clients such as `trap 3`."""

    cited: str
    test: str


@dataclass(frozen=True)
class Coverage:
    area: str
    flag: str
    stated: frozenset[str]
    cited: frozenset[str]

    @property
    def missing(self) -> list[str]:
        return sorted(self.stated - self.cited, key=sort_key)

    def __str__(self) -> str:
        done, all_of_them = len(self.stated & self.cited), len(self.stated)
        return f"{AREAS[self.area]:18} {self.flag:8} {done:4} of {all_of_them:3}  {done / max(all_of_them, 1):6.1%}"


@cache
def statements() -> tuple[Statement, ...]:
    """All statements of the contract, page by page, including repeated ones."""
    return tuple(each for page in sorted(CONTRACT.glob("*.md")) for each in _statements_of(page))


@cache
def traps() -> frozenset[str]:
    return frozenset(f"trap {match['number']}" for match in TRAP.finditer((CONTRACT / "clients.md").read_text()))


@cache
def citations() -> tuple[Citation, ...]:
    """The citations in brackets in the docstrings of tests."""
    return tuple(
        Citation(cited, f"{path.relative_to(TESTS)}::{name}")
        for path in sorted(TESTS.rglob("test_*.py"))
        for name, docstring in _test_docstrings(path)
        for cited in find_citations(docstring)
    )


def coverage() -> list[Coverage]:
    cited = frozenset(each.cited for each in citations())
    return [
        Coverage(area, flag, frozenset(_numbers(area, flag)), cited)
        for area in AREAS
        for flag in FLAGS
        if any(_numbers(area, flag))
    ]


def find_citations(text: str) -> list[str]:
    """The statements and traps that a text cites in brackets."""
    within = " ".join(match[0] for match in BRACKETS.finditer(text))
    found = CITED.findall(expand_ranges(within))
    return found + [f"trap {number}" for match in TRAPS.finditer(within) for number in match[1].split(", ")]


def expand_ranges(text: str) -> str:
    """Replace ranges by their members: `R215-R217` also cites R216."""

    def written_out(match: re.Match[str]) -> str:
        letter, first, last = match[1], int(match[2]), int(match[3])
        return " ".join(f"{letter}{number}" for number in range(first, last + 1))

    return RANGE.sub(written_out, text)


def sort_key(statement: str) -> tuple[str, int, str]:
    letter, digits, rest = re.fullmatch(r"([A-Z])(\d+)(a?)", statement).groups()
    return letter, int(digits), rest


def _statements_of(page: Path) -> Iterator[Statement]:
    """Yield the items of a page, each with the lines that belong to it."""
    found: Mapping[str, str] | None = None
    lines: list[str] = []
    for line in [*page.read_text().splitlines(), "# the end"]:
        match = ITEM.match(line)
        if found and (match or (line and not line.startswith("  "))):
            yield Statement(found["number"], found["flag"], found["anchor"], page.name, "\n".join(lines).strip())
            found = None
        if match:
            found, lines = match.groupdict(), [match["text"]]
        else:
            lines.append(line)


def _test_docstrings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def _numbers(area: str, flag: str) -> Iterator[str]:
    return (each.number for each in statements() if (each.area, each.flag) == (area, flag))


if __name__ == "__main__":
    for part in coverage():
        print(part)
        if part.missing:
            print("    not cited:", " ".join(part.missing))
