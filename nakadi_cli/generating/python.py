"""Writes declarations as Python: models of pydantic, Structs of msgspec, or dataclasses."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum

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
    without_null,
)
from nakadi_cli.generating.names import TYPE_NAMES_IN_USE, Identifiers, comment_lines, quoted, snake_case


class Models(StrEnum):
    PYDANTIC = "pydantic"
    MSGSPEC = "msgspec"
    DATACLASS = "dataclass"


_NAMES_IN_ANNOTATIONS = ("str", "int", "float", "bool", "list", "dict", "field", "datetime", "property", "object")
_SCALARS = {
    Scalar.TEXT: "str",
    Scalar.INTEGER: "int",
    Scalar.NUMBER: "float",
    Scalar.BOOLEAN: "bool",
    Scalar.ANYTHING: "Any",
}
# Names that models of pydantic already have, and names that begin with `model_`.
_NAMES_OF_PYDANTIC = frozenset(
    """
    Config construct copy dict from_orm json parse_file parse_obj parse_raw schema schema_json update_forward_refs
    validate
    """.split()  # noqa: SIM905  # a table reads better than a dozen words in quotes
)

_NO_NAME_OF_MSGSPEC = re.compile(r'["\\\x00-\x1f]')
# The key in the metadata of a dataclass field whose value is the name of the JSON member, as source text.
_MEMBER_KEY = '"member"'

_PYDANTIC_BASE = '''\
class Model(BaseModel):
    """Writes only the members that were read or set, so that absent ones do not become null."""

    model_config = ConfigDict(populate_by_name=True)

    def model_dump_json(self, **options: Any) -> str:
        return super().model_dump_json(**{"by_alias": True, "exclude_unset": True, **options})'''


def write_python(declarations: Declarations, models: Models, *, has_native_dates: bool = False) -> str:
    """Return a module with a class for each record. Aliases for choices come first."""
    writer = _Writer(declarations, models, has_native_dates=has_native_dates)
    aliases = [writer.choice_line(each) for each in declarations.choices]
    classes = ["\n".join(writer.record_lines(each)) for each in declarations.records]
    if models is Models.PYDANTIC:
        classes.insert(0, _PYDANTIC_BASE)
    return "\n\n\n".join(["\n".join([writer.head(), *aliases]).rstrip("\n"), *classes]) + "\n"


class _Writer:
    def __init__(self, declarations: Declarations, models: Models, *, has_native_dates: bool) -> None:
        self._declarations = declarations
        self._models = models
        self._scalars = {**_SCALARS, Scalar.MOMENT: "datetime" if has_native_dates else "str"}
        self._has_native_dates = has_native_dates
        self._type_names = [each.name for each in declarations.declared]

    def head(self) -> str:
        sources = [f"#   {line}" for each in self._declarations.sources for line in comment_lines(each)]
        return "\n".join(
            [
                '"""Types of events. `nakadi types` wrote this file: do not edit it."""',
                "",
                "# The event types, with the versions of their schemas:",
                *sources,
                "",
                "from __future__ import annotations",
                "",
                *self._imports(),
                "",
            ]
        )

    def _imports(self) -> list[str]:
        lines = []
        if self._models is Models.DATACLASS:
            lines.append(f"from dataclasses import dataclass{', field' if self._has_odd_names() else ''}")
        if self._has_native_dates and Scalar.MOMENT in self._declarations.parts():
            lines.append("from datetime import datetime")
        names = [
            *(["Any"] if self._needs_any() else []),
            *(["Literal", "TypeAlias"] if self._declarations.choices else []),
        ]
        if names:
            lines.append(f"from typing import {', '.join(names)}")
        if self._models is Models.PYDANTIC:
            field = ", Field" if self._has_odd_names() else ""
            lines += ["", f"from pydantic import BaseModel, ConfigDict{field}"]
        if self._models is Models.MSGSPEC:
            fields = [each for record in self._declarations.records for each in record.fields]
            names = ["UNSET", "Struct", "UnsetType"] if any(not each.is_required for each in fields) else ["Struct"]
            names += ["field"] if self._has_odd_names() else []
            lines += ["", f"from msgspec import {', '.join(names)}"]
        return lines

    def _needs_any(self) -> bool:
        texts = (self._annotation(each.type) for record in self._declarations.records for each in record.fields)
        return self._models is Models.PYDANTIC or any(re.search(r"\bAny\b", each) for each in texts)

    def _has_odd_names(self) -> bool:
        return any(
            name != each.member
            for record in self._declarations.records
            for each, name in zip(record.fields, self._field_names(record), strict=True)
        )

    def _field_names(self, record: Record) -> list[str]:
        reserved = [*keyword.kwlist, *_NAMES_IN_ANNOTATIONS, *TYPE_NAMES_IN_USE, *self._type_names]
        if self._models is Models.PYDANTIC:
            reserved += _NAMES_OF_PYDANTIC
        names = Identifiers(reserved)
        wanted = {each.member: self._preferred_name(each.member) for each in record.fields}
        # Members that keep their names come first: pydantic reads a member into a field of this name or alias.
        claimed = {
            member: names.claim(name) for member, name in sorted(wanted.items(), key=lambda pair: pair[0] != pair[1])
        }
        return [claimed[each.member] for each in record.fields]

    def _preferred_name(self, member: str) -> str:
        name = snake_case(member)
        if name.startswith("model_") and self._models is Models.PYDANTIC:
            return f"the_{name}"
        return name if name[:1].isalpha() else f"member_{name}"

    def choice_line(self, choice: Choice) -> str:
        values = ", ".join(quoted(each, wide=True) for each in choice.values)
        return f"{choice.name}: TypeAlias = Literal[{values}]"

    def record_lines(self, record: Record) -> list[str]:
        lines = [*self._class_lines(record.name), *self._docstring(record.description)]
        for each, name in zip(record.fields, self._field_names(record), strict=True):
            if self._can_read(each.member):
                lines += [f"    # {line}" for line in comment_lines(each.description)]
                lines.append(f"    {name}: {self._field(each, name)}")
            else:
                lines += [f"    # msgspec cannot read this member: {line}" for line in comment_lines(each.member)[:1]]
        has_body = any(line.startswith("    ") and not line.startswith("    #") for line in lines)
        return lines if has_body else [*lines, "    pass"]

    def _can_read(self, member: str) -> bool:
        return self._models is not Models.MSGSPEC or _NO_NAME_OF_MSGSPEC.search(member) is None

    def _class_lines(self, name: str) -> list[str]:
        match self._models:
            case Models.PYDANTIC:
                return [f"class {name}(Model):"]
            case Models.MSGSPEC:
                return [f"class {name}(Struct, kw_only=True):"]
            case Models.DATACLASS:
                return ["@dataclass(kw_only=True)", f"class {name}:"]

    def _docstring(self, text: str) -> list[str]:
        lines = comment_lines(text)
        if not lines:
            return []
        if len(lines) == 1:
            return [f'    """{lines[0]}"""', ""]
        return [f'    """{lines[0]}', *(f"    {each}" for each in lines[1:]), '    """', ""]

    def _field(self, each: Field, name: str) -> str:
        annotation = self._annotation(each.type)
        default = None
        if not each.is_required:
            is_unset = self._models is Models.MSGSPEC
            annotation = _add_alternative(annotation, "UnsetType" if is_unset else "None")
            default = "UNSET" if is_unset else "None"
        if name == each.member:
            return annotation if default is None else f"{annotation} = {default}"
        return f"{annotation} = {self._field_call(quoted(each.member, wide=True), default)}"

    def _field_call(self, member: str, default: str | None) -> str:
        arguments = [] if default is None else [f"default={default}"]
        match self._models:
            case Models.PYDANTIC:
                return (
                    f"Field({', '.join([*arguments, f'validation_alias={member}', f'serialization_alias={member}'])})"
                )
            case Models.MSGSPEC:
                return f"field({', '.join([*arguments, f'name={member}'])})"
            case Models.DATACLASS:
                return f"field({', '.join([*arguments, f'metadata={{{_MEMBER_KEY}: {member}}}'])})"

    def _annotation(self, kind: Type) -> str:
        match kind:
            case Scalar():
                return self._scalars[kind]
            case ListOf(item=item):
                return f"list[{self._annotation(item)}]"
            case MapOf(value=value):
                return f"dict[str, {self._annotation(value)}]"
            case Nullable(value=value):
                return _add_alternative(self._annotation(value), "None")
            case OneOf(types=types):
                is_readable = self._models is Models.PYDANTIC or _can_tell_apart(types)
                return " | ".join(map(self._annotation, types)) if is_readable else "Any"
            case Reference(name=name):
                return name


def _can_tell_apart(types: tuple[Type, ...]) -> bool:
    """Whether msgspec accepts a union of these types: the kind of JSON value has to determine the type."""
    kinds = [_json_kind(without_null(each)) for each in types]
    return len(set(kinds)) == len(kinds)


def _json_kind(kind: Type) -> str:
    match kind:
        case Scalar():
            return {Scalar.MOMENT: "text"}.get(kind, kind.value)
        case ListOf():
            return "array"
        case Reference(is_record=False):
            return "text"
    return "object"


def _add_alternative(annotation: str, other: str) -> str:
    """Add an alternative, unless it or `Any` is there already."""
    parts = annotation.split(" | ")
    return annotation if other in parts or (annotation == "Any" and other == "None") else f"{annotation} | {other}"
