"""Writes declarations as Java: records for Jackson, nested in one class."""

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
    _ abstract assert boolean break byte case catch char class const continue default do double else enum extends false
    final finally float for goto if implements import instanceof int interface long native new null package private
    protected public return short static strictfp super switch synchronized this throw throws transient true try void
    volatile while
    """.split()  # noqa: SIM905  # a table reads better than fifty words in quotes
)
# No component of a record may have the name of a method that every object has.
_NAMES_OF_METHODS = ("clone", "finalize", "getClass", "hashCode", "notify", "notifyAll", "toString", "wait")
_SCALARS = {
    Scalar.TEXT: "String",
    Scalar.INTEGER: "Long",
    Scalar.NUMBER: "BigDecimal",
    Scalar.BOOLEAN: "Boolean",
    Scalar.ANYTHING: "Object",
}


def write_java(
    declarations: Declarations, package: str | None, class_name: str, *, has_native_dates: bool = False
) -> str:
    """Return the text of a file with a Java record for each declared record. Raises `BadInput` for a record that is too
    large for a JVM.
    """
    writer = _Writer("OffsetDateTime" if has_native_dates else "String")
    lines = [
        "// Types of events. `nakadi types` wrote this file: do not edit it.",
        "// The event types, with versions:",
    ]
    lines += [f"//   {line}" for each in declarations.sources for line in comment_lines(each)]
    lines += ["", f"package {package};"] if package else []
    lines += [
        "",
        *writer.imports(declarations),
        "",
        f"public final class {class_name} {{",
        f"    private {class_name}() {{}}",
    ]
    for each in declarations.declared:
        lines += ["", *(writer.record_lines(each) if isinstance(each, Record) else _choice_lines(each))]
    return "\n".join([*lines, "}"]) + "\n"


class _Writer:
    def __init__(self, moment: str) -> None:
        self._scalars = {**_SCALARS, Scalar.MOMENT: moment}

    def imports(self, declarations: Declarations) -> list[str]:
        parts = set(declarations.parts())
        needed = {
            "java.math.BigDecimal": Scalar.NUMBER in parts,
            "java.time.OffsetDateTime": Scalar.MOMENT in parts and self._scalars[Scalar.MOMENT] == "OffsetDateTime",
            "java.util.List": any(isinstance(each, ListOf) for each in parts),
            "java.util.Map": any(isinstance(each, MapOf) for each in parts),
        }
        jackson = ("JsonIgnoreProperties", "JsonInclude", "JsonProperty")
        names = [f"com.fasterxml.jackson.annotation.{each}" for each in jackson]
        return [f"import {each};" for each in (*names, *(name for name, is_used in needed.items() if is_used))]

    def record_lines(self, record: Record) -> list[str]:
        check_members(record)
        names = Identifiers([*KEYWORDS, *_NAMES_OF_METHODS])
        fields = [self._field_lines(each, names) for each in record.fields]
        separated = [[*lines[:-1], f"{lines[-1]},"] for lines in fields[:-1]] + fields[-1:]
        return [
            *block_comment(record.description, "    "),
            "    @JsonIgnoreProperties(ignoreUnknown = true)",
            "    @JsonInclude(JsonInclude.Include.NON_NULL)",
            f"    public record {record.name}(",
            *(line for lines in separated for line in lines),
            "    ) {}",
        ]

    def _field_lines(self, each: Field, names: Identifiers) -> list[str]:
        keeps_null = each.is_required and (isinstance(each.type, Nullable) or each.type is Scalar.ANYTHING)
        include = "@JsonInclude(JsonInclude.Include.ALWAYS) " if keeps_null else ""
        required = ", required = true" if each.is_required else ""
        declared = f"{self._type(each.type)} {names.claim(camel_case(each.member))}"
        return [
            *block_comment(each.description, "        "),
            f"        {include}@JsonProperty(value = {quoted(each.member)}{required}) {declared}",
        ]

    def _type(self, kind: Type) -> str:
        match kind:
            case Scalar():
                return self._scalars[kind]
            case ListOf(item=item):
                return f"List<{self._type(item)}>"
            case MapOf(value=value):
                return f"Map<String, {self._type(value)}>"
            case Nullable(value=value):
                return self._type(value)
            case OneOf():
                return "Object"
            case Reference(name=name):
                return name


def _choice_lines(choice: Choice) -> list[str]:
    names = Identifiers(substitute="VALUE_")
    constants = [f"        @JsonProperty({quoted(each)}) {names.claim(upper_case(each))}" for each in choice.values]
    return [f"    public enum {choice.name} {{", ",\n".join(constants), "    }"]
