"""Which statements of the contract are built, and which of them a test names.

A test names a statement in its docstring: `(R17, P30)`. Run `python -m tests.support.statements` for the table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]

# Area -> flag -> numbers. `core` is what clients depend on, `edge` is rarely met.
STATEMENTS = {
    "R": {
        "core": (
            "1-7 9 11-14 16-19 21 23-24 26-28 33-35 37-38 41-44 46 48-57 60-64 66-73 75-82 84 86-92 94 "
            "96-100 102-105 107 109-123 125-134 136-145 148-159 161-166 169-178 180-208 210-212 215-222 "
            "224-226 228-230 232-235 237-245 248-249 252-255 257-262 264-276"
        ),
        "edge": (
            "8 10 15 20 22 25 29-32 36 39-40 45 47 58-59 65 74 83 85 93 95 101 106 108 124 135 146-147 160 "
            "167-168 179 209 213-214 223 227 231 236 246-247 250-251 256 263 277"
        ),
    },
    "P": {
        "core": (
            "1-5 9 14-25 30-31 33-34 37-43 48-51 54 56-68 70-72 74-76 78-84 86-91 95-97 99-102 105-108 "
            "110-112 115-119 121-122 124 135-138 140-141 143-144"
        ),
        "edge": (
            "6-8 10-13 26-29 32 35-36 44-46 52-53 55 69 73 85 92-93 103 113-114 120 123 125-133 139 142 145-154 11a"
        ),
    },
    "L": {
        "core": ("1-8 12-18 20-24 26-28 33-38 40-60 65 67-68 36a"),
        "edge": ("9-11 19 25 29-32 39 61-63 66 69-70 58a"),
    },
    "C": {
        "core": ("1-7 10-17 19-27 30-42 44-48 51-66"),
        "edge": ("8-9 18 28-29 43 49-50 67-71"),
    },
    "S": {
        "core": (
            "1-6 8-11 13-14 16-19 21-23 25-30 32-34 36 38-41 43-50 55 59-61 63-68 70 72-74 76-81 84 87-93 "
            "95-98 100-101 103-106 109-112 114-120 122-126 128-129 131-138 140-143 147-150 154-157 159 "
            "161-162 165-173 176-183 185-191 194-196 199 201 203-206 210-212 214-233 235-246 248 250-254 "
            "256-268 270-271 273-277 280-285 287-291 293-295 299-305 307-310 312-319"
        ),
        "edge": (
            "7 15 20 24 31 35 37 42 51-54 56-58 62 69 71 75 82-83 85-86 94 99 102 107-108 113 121 127 130 "
            "139 145-146 151-153 158 160 163-164 174-175 184 192-193 197 200 202 207-209 213 234 255 269 272 "
            "278-279 286 292 296-298 306 311"
        ),
    },
}

AREAS = {"R": "registry", "P": "publishing", "L": "low-level streams", "C": "cursors", "S": "subscriptions"}

STATEMENT = re.compile(r"\b([RPLCS])(\d+a?)\b")


@dataclass(frozen=True)
class Coverage:
    area: str
    flag: str
    stated: frozenset[str]
    named: frozenset[str]

    @property
    def share(self) -> float:
        return len(self.stated & self.named) / len(self.stated)

    @property
    def missing(self) -> list[str]:
        return sorted(self.stated - self.named, key=_order)

    def __str__(self) -> str:
        done = len(self.stated & self.named)
        return f"{AREAS[self.area]:18} {self.flag:4} {done:4} of {len(self.stated):3}  {self.share:6.1%}"


def coverage() -> list[Coverage]:
    named = named_statements()
    return [
        Coverage(area, flag, frozenset(area + number for number in _numbers(text)), frozenset(named))
        for area, flags in STATEMENTS.items()
        for flag, text in flags.items()
    ]


def named_statements() -> set[str]:
    """Every statement that the docstring of a test function names."""
    return {
        letter + number
        for path in TESTS.rglob("test_*.py")
        for docstring in _test_docstrings(path)
        for letter, number in STATEMENT.findall(docstring)
    }


def _test_docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield _with_ranges_written_out(ast.get_docstring(node) or "")


def _with_ranges_written_out(docstring: str) -> str:
    """`R215-R217` names the ones between, too."""

    def written_out(match: re.Match[str]) -> str:
        letter, first, last = match[1], int(match[2]), int(match[3])
        return " ".join(f"{letter}{number}" for number in range(first, last + 1))

    return re.sub(r"\b([RPLCS])(\d+)[-\u2013]\1?(\d+)\b", written_out, docstring)


def _numbers(text: str) -> Iterator[str]:
    for part in text.split():
        first, _, last = part.partition("-")
        if last:
            yield from map(str, range(int(first), int(last) + 1))
        else:
            yield first


def _order(statement: str) -> tuple[str, int, str]:
    letter, digits, rest = re.fullmatch(r"([A-Z])(\d+)(a?)", statement).groups()
    return letter, int(digits), rest


if __name__ == "__main__":
    for each in coverage():
        print(each)
        if each.missing:
            print("    not named:", " ".join(each.missing))
