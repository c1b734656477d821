"""Writes docs/settings.md from the fields of `Settings`: their groups, defaults and descriptions.

python scripts/settings_reference.py
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "layers/nakadi/python/nakadi/app/settings.py"
REFERENCE = ROOT / "docs/settings.md"

INTRODUCTION = """\
# Settings

Each setting is an environment variable. If you do not set a variable, its default applies. If the value of a variable
is invalid, the broker does not start, and the error message names the variable. The broker ignores a variable that
begins with `NAKADI_` but is not a setting, for example because it is misspelled; a warning in the log then names the
setting with the most similar name.

Commas separate the items of a list, as in `RS256,ES256`, and of a list of pairs, as in `user=ann,service=ops`. The name
of a setting ends with its unit. For defaults in milliseconds, the table also gives the seconds.

`scripts/settings_reference.py` generates this page from `nakadi/app/settings.py`.
"""


def reference(source: str) -> str:
    """The text of docs/settings.md. Raises `ValueError` for a field without a description."""
    parts = [INTRODUCTION]
    lines = source.splitlines()
    body = _settings_class(source).body
    for field, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or field.value is None:
            continue
        comment = lines[field.lineno - 2].strip()
        if comment.startswith("# "):
            parts.append(f"\n## {comment[2:]}\n\n| variable | default | description |\n|---|---|---|\n")
        name = field.target.id
        default = _default_text(name, ast.literal_eval(field.value))
        parts.append(f"| `NAKADI_{name.upper()}` | {default} | {_description(name, following)} |\n")
    return "".join(parts)


def _settings_class(source: str) -> ast.ClassDef:
    return next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Settings")


def _description(name: str, node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    raise ValueError(f"The setting {name} has no description below it")


def _default_text(name: str, default: Any) -> str:
    text = ",".join(_items(default)) if isinstance(default, tuple) else str(default)
    if not text:
        return ""
    return f"`{text}` ({default // 1000:,} s)" if name.endswith("_ms") else f"`{text}`"


def _items(default: tuple[Any, ...]) -> Iterator[str]:
    for each in default:
        yield "=".join(each) if isinstance(each, tuple) else str(each)


if __name__ == "__main__":
    REFERENCE.write_text(reference(SOURCE.read_text()))
