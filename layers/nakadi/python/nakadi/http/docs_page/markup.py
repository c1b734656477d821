"""HTML that is safe by construction, and how schemas and examples of them look in it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Any

from nakadi.openapi import Node, resolved

# What may stand in a tag without a closing one.
VOID = frozenset({"meta", "input", "wbr"})

WORDS = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*")


class Html(str):
    """Text that is HTML. Only this module makes any from nothing."""

    __slots__ = ()


Child = str | None


def element(name: str, /, *children: Child, **attributes: str | None) -> Html:
    """An element; `class_` stands for `class`, a dash may be written as an underscore, None leaves an attribute out."""
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{joined(children)}</{name}>")


def joined(children: Iterable[Child], between: str = "") -> Html:
    return Html(escaped(between).join(escaped(each) for each in children if each is not None))


def escaped(text: str) -> Html:
    return text if isinstance(text, Html) else Html(html.escape(text))


def trusted(text: str) -> Html:
    """HTML, CSS or script of our own that must not be escaped."""
    return Html(text)


def prose(text: str) -> Html:
    """Paragraphs, lists, `code`, **strong** and *stressed* words: as much of CommonMark as our descriptions use."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return joined(_block(block) for block in blocks if block)


def _block(text: str) -> Html:
    if not text.startswith("- "):
        return element("p", words(_unfolded(text)))
    items = re.split(r"(?:^|\n)- ", text)[1:]
    return element("ul", *(element("li", words(_unfolded(item))) for item in items))


def _unfolded(text: str) -> str:
    return " ".join(text.split())


def words(text: str) -> Html:
    pieces: list[Html] = []
    rest = 0
    for match in WORDS.finditer(text):
        code, strong, stressed = match.groups()
        name, inside = ("code", code) if code else ("strong", strong) if strong else ("em", stressed)
        pieces += [escaped(text[rest : match.start()]), element(name, inside)]
        rest = match.end()
    return joined([*pieces, escaped(text[rest:])])


# Examples -------------------------------------------------------------------------------------------------------------


PLAIN = {"string": "…", "integer": 1, "number": 1.5, "boolean": True}


def of_media_type(content: Node) -> list[tuple[str, Any]]:
    """Examples of a body with their headings."""
    if "examples" in content:
        return [(each["summary"], each["value"]) for each in content["examples"].values()]
    return [("Example", content["example"] if "example" in content else of_schema(content["schema"]))]


def of_schema(schema: Node) -> Any:
    schema = resolved(schema)
    if "example" in schema:
        return schema["example"]
    if schema["type"] == "array":
        return [of_schema(schema["items"])]
    if schema["type"] == "object":
        return {name: of_schema(each) for name, each in schema.get("properties", {}).items()}
    return schema["enum"][0] if "enum" in schema else schema.get("default", PLAIN[schema["type"]])


def of_parameter(parameter: Node) -> str:
    """What a parameter may look like in a URL or a header."""
    value = parameter["example"] if "example" in parameter else of_schema(parameter["schema"])
    return str(value).lower() if isinstance(value, bool) else str(value)


# Schemas --------------------------------------------------------------------------------------------------------------


# Of a line of JSON.
WIDTH = 84

PLURALS = {"string": "strings", "integer": "integers", "number": "numbers", "boolean": "booleans", "object": "objects"}


def schema_section(name: str, schema: Node) -> Html:
    summary = element("summary", element("h3", name), element("span", _first_sentence(schema), class_="about"))
    example = code_block(schema["example"]) if "example" in schema else None
    content = element("div", prose(schema.get("description", "")), _details(schema), example, class_="content")
    return element("details", summary, content, class_="entry schema", id=f"schema-{name}")


def _details(schema: Node) -> Html | None:
    if "properties" in schema:
        return properties_table(schema)
    if schema["type"] == "array":
        return element("p", type_of(schema))
    return facts(schema)


def properties_table(schema: Node) -> Html:
    required = schema.get("required", ())
    rows = [_property_row(name, each, needed=name in required) for name, each in schema["properties"].items()]
    return table(("Member", "Type", "What it is"), rows)


def _property_row(name: str, schema: Node, *, needed: bool) -> Html:
    marks = [element("span", "required", class_="mark") if needed else None]
    marks += [element("span", "never sent", class_="mark quiet") if schema.get("readOnly") else None]
    about = "" if "$ref" in schema else schema.get("description", "")
    if "$ref" in schema:
        about = _first_sentence(resolved(schema))
    return element(
        "tr",
        element("th", element("code", name), *marks, scope="row"),
        element("td", type_of(schema)),
        element("td", prose(about), facts(schema)),
    )


def table(headings: tuple[str, ...], rows: list[Html]) -> Html:
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in headings)))
    return element("div", element("table", head, element("tbody", *rows)), class_="table")


def type_of(schema: Node) -> Html:
    """The type in words, with links to the schemas that it speaks of."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return element("a", name, href=f"#schema-{name}")
    if schema["type"] == "array":
        return joined(["array of ", _plural(schema["items"])])
    if isinstance(schema.get("additionalProperties"), dict):
        return joined(["object of ", _plural(schema["additionalProperties"])])
    kind = schema.get("format", "").replace("date-time", "time") or schema["type"]
    return joined([kind, " or null" if schema.get("nullable") else None])


def _plural(schema: Node) -> Html:
    if "$ref" in schema:
        return type_of(schema)
    return joined([PLURALS[schema["type"]], " or nulls" if schema.get("nullable") else None])


def facts(schema: Node) -> Html | None:
    """Words that it may be, bounds, and the default."""
    listed = schema if "enum" in schema else schema.get("items", {})
    found = [
        _fact("one of", joined([element("code", each) for each in listed["enum"]], " ")) if "enum" in listed else None,
        _fact("default", _literal(schema["default"])) if "default" in schema else None,
        *(_fact(label, _literal(schema[key])) for key, label in BOUNDS.items() if key in schema),
        _fact("for example", _literal(schema["example"])) if _has_small_example(schema) else None,
    ]
    shown = [each for each in found if each is not None]
    return element("ul", *shown, class_="facts") if shown else None


BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "characters, at least",
    "maxLength": "characters, at most",
    "minItems": "items, at least",
    "pattern": "pattern",
}


def _has_small_example(schema: Node) -> bool:
    return "example" in schema and not isinstance(schema["example"], dict)


def _fact(label: str, value: Html) -> Html:
    return element("li", label, " ", value)


def _literal(value: Any) -> Html:
    return element("code", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def code_block(value: Any) -> Html:
    return element("pre", element("code", value if isinstance(value, str) else laid_out(value)), tabindex="0")


def laid_out(value: Any, indent: str = "") -> str:
    """JSON in which everything short stays on one line."""
    compact = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(compact) <= WIDTH or not isinstance(value, (dict, list)):
        return compact
    deeper = indent + "  "
    if isinstance(value, list):
        opening, closing, members = "[", "]", [laid_out(each, deeper) for each in value]
    else:
        opening, closing = "{", "}"
        members = [f"{json.dumps(name)}: {laid_out(each, deeper)}" for name, each in value.items()]
    return f"{opening}\n" + ",\n".join(deeper + each for each in members) + f"\n{indent}{closing}"


def _first_sentence(schema: Node) -> Html:
    first_line = " ".join(schema.get("description", "").split("\n\n")[0].split())
    return words(first_line.split(". ")[0].rstrip(".:") + ".") if first_line else joined([])
