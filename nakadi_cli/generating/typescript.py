"""Writes declarations as TypeScript."""

from __future__ import annotations

import re

from nakadi_cli.generating.declarations import (
    Choice,
    Declarations,
    Field,
    ListOf,
    MapOf,
    Nullable,
    OneOf,
    Record,
    Reference,
    Scalar,
    Type,
)
from nakadi_cli.generating.names import block_comment, comment_lines, quoted

_SCALARS = {
    Scalar.TEXT: "string",
    Scalar.MOMENT: "string",
    Scalar.INTEGER: "number",
    Scalar.NUMBER: "number",
    Scalar.BOOLEAN: "boolean",
    Scalar.ANYTHING: "unknown",
}


def write_typescript(declarations: Declarations) -> str:
    """Return a module with an interface for each record, and a union of literals for each choice."""
    lines = [
        "// Types of events. `nakadi types` wrote this file: do not edit it.",
        "// The event types, with versions:",
    ]
    lines += [f"//   {line}" for each in declarations.sources for line in comment_lines(each)]
    for each in declarations.declared:
        lines += ["", *(_record_lines(each) if isinstance(each, Record) else _choice_lines(each))]
    return "\n".join(lines) + "\n"


def _choice_lines(choice: Choice) -> list[str]:
    return [f"export type {choice.name} = {' | '.join(quoted(each) for each in choice.values)};"]


def _record_lines(record: Record) -> list[str]:
    fields = [line for each in record.fields for line in _field_lines(each)]
    return [*block_comment(record.description), f"export interface {record.name} {{", *fields, "}"]


def _field_lines(each: Field) -> list[str]:
    name = each.member if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", each.member) else quoted(each.member)
    return [*block_comment(each.description, "  "), f"  {name}{'' if each.is_required else '?'}: {_type(each.type)};"]


def _type(kind: Type) -> str:
    match kind:
        case Scalar():
            return _SCALARS[kind]
        case ListOf(item=item):
            inner = _type(item)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        case MapOf(value=value):
            return f"Record<string, {_type(value)}>"
        case Nullable(value=value):
            return f"{_type(value)} | null"
        case OneOf(types=types):
            return " | ".join(_type(each) for each in types)
        case Reference(name=name):
            return name
