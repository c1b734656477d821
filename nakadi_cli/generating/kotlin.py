"""Writes declarations as Kotlin, for kotlinx.serialization."""

from __future__ import annotations

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
from nakadi_cli.generating.jvm import check_members
from nakadi_cli.generating.names import Identifiers, block_comment, camel_case, comment_lines, quoted, upper_case

KEYWORDS = frozenset(
    """
    as break class continue do else false for fun if in interface is null object package return super this throw true
    try typealias typeof val var when while
    """.split()  # noqa: SIM905  # a table reads better than thirty words in quotes
)
_SCALARS = {
    Scalar.TEXT: "String",
    Scalar.MOMENT: "String",
    Scalar.INTEGER: "Long",
    Scalar.NUMBER: "Double",
    Scalar.BOOLEAN: "Boolean",
    Scalar.ANYTHING: "JsonElement",
}
# Names that a constant of an enumeration already has.
_NAMES_OF_CONSTANTS = ("ENTRIES", "NAME", "ORDINAL")


def write_kotlin(declarations: Declarations, package: str | None) -> str:
    """Return a file with a data class for each record. Raises `BadInput` for a record that is too large for a JVM."""
    lines = [
        "// Types of events. `nakadi types` wrote this file: do not edit it.",
        "// The event types, with versions:",
    ]
    lines += [f"//   {line}" for each in declarations.sources for line in comment_lines(each)]
    lines += ["", f"package {package}"] if package else []
    lines += ["", *_imports(declarations)]
    for each in declarations.declared:
        lines += ["", *(_record_lines(each) if isinstance(each, Record) else _choice_lines(each))]
    return "\n".join(lines) + "\n"


def _imports(declarations: Declarations) -> list[str]:
    uses_elements = any(part is Scalar.ANYTHING or isinstance(part, OneOf) for part in declarations.parts())
    lines = ["import kotlinx.serialization.SerialName", "import kotlinx.serialization.Serializable"]
    return [*lines, "import kotlinx.serialization.json.JsonElement"] if uses_elements else lines


def _choice_lines(choice: Choice) -> list[str]:
    names = Identifiers(_NAMES_OF_CONSTANTS, substitute="VALUE_")
    constants = [f"    @SerialName({_literal(each)}) {names.claim(upper_case(each))}," for each in choice.values]
    return ["@Serializable", f"enum class {choice.name} {{", *constants, "}"]


def _record_lines(record: Record) -> list[str]:
    check_members(record)
    head = [*block_comment(record.description), "@Serializable"]
    if not record.fields:
        return [*head, f"class {record.name}"]
    names = Identifiers(KEYWORDS)
    fields = [line for each in record.fields for line in _field_lines(each, names)]
    return [*head, f"data class {record.name}(", *fields, ")"]


def _field_lines(each: Field, names: Identifiers) -> list[str]:
    name = names.claim(camel_case(each.member))
    kind = _type(each.type)
    if not each.is_required:
        kind = f"{kind.removesuffix('?')}? = null"
    alias = "" if name == each.member else f"@SerialName({_literal(each.member)}) "
    return [*block_comment(each.description, "    "), f"    {alias}val {name}: {kind},"]


def _literal(text: str) -> str:
    return quoted(text, also="$")


def _type(kind: Type) -> str:
    match kind:
        case Scalar():
            return _SCALARS[kind]
        case ListOf(item=item):
            return f"List<{_type(item)}>"
        case MapOf(value=value):
            return f"Map<String, {_type(value)}>"
        case Nullable(value=value):
            return f"{_type(value)}?"
        case OneOf():
            return "JsonElement"
        case Reference(name=name):
            return name
