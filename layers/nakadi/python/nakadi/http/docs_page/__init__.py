"""The description of the API as one page for a browser, which loads nothing from other hosts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
from collections.abc import Iterable
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from nakadi.openapi import ApiOperation, Node, document, operations, resolve_reference
from nakadi.openapi.examples import example_of_parameter, examples_of_media_type

# A placeholder for the broker's address, which depends on the reader. No text of the page contains the placeholder.
ADDRESS_PLACEHOLDER = "\u0001address\u0001"


def page_html(address: str) -> str:
    """The page for a reader who reaches the broker at this address, such as `https://nakadi.example.org`."""
    return _page_template().replace(ADDRESS_PLACEHOLDER, str(joined_html([address])))


@cache
def content_security_policy() -> str:
    """The content security policy, which allows only the page's own style and script, by their hashes."""
    return (
        f"default-src 'none'; style-src '{_csp_hash(_read_page_file('page.css'))}'; "
        f"script-src '{_csp_hash(_read_page_file('page.js'))}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _page_template() -> str:
    title = document()["info"]["title"]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title}: the API"),
        element("style", trusted_html(_read_page_file("page.css"))),
    )
    body = element(
        "body",
        element("a", "Skip to the operations", class_="skip", href="#operations"),
        _navigation(),
        element("main", _introduction(), *_operation_groups(), _schemas_section()),
        element("script", trusted_html(_read_page_file("page.js"))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _navigation() -> Html:
    search = element("input", type="search", id="search", placeholder="Search", aria_label="Search", autocomplete="off")
    groups = [_navigation_group(tag["name"], _operations_of_tag(tag["name"])) for tag in document()["tags"]]
    names = [element("li", element("a", name, href=f"#schema-{name}")) for name in _schema_names()]
    schemas = element("section", element("h2", element("a", "Schemas", href="#schemas")), element("ul", *names))
    menu = element("details", element("summary", "Contents"), *groups, schemas, class_="menu", open="")
    title = element("a", document()["info"]["title"], class_="title", href="#top")
    return element("nav", element("div", title, search, class_="bar"), menu, aria_label="Contents")


def _navigation_group(tag: str, operations: list[ApiOperation]) -> Html:
    entries = [
        element(
            "li",
            element(
                "a",
                element("span", each.method, class_=f"method {each.method.lower()}"),
                element("span", each.description["summary"]),
                href=f"#{each.id}",
            ),
        )
        for each in operations
    ]
    return element("section", element("h2", element("a", tag, href=f"#{group_id(tag)}")), element("ul", *entries))


def _introduction() -> Html:
    info = document()["info"]
    version = element("span", info["version"], class_="version")
    description = element("a", "OpenAPI document", href="openapi.json")
    return element(
        "header",
        element("h1", info["title"], " ", version),
        prose_html(info["description"]),
        element(
            "p",
            "Programs can read the same description as an ",
            description,
            ". This broker is at ",
            _address_tag(),
            ".",
        ),
        id="top",
    )


def _address_tag() -> Html:
    return element("code", trusted_html(ADDRESS_PLACEHOLDER))


def _operation_groups() -> list[Html]:
    nothing = element("p", "No operation contains all of these words.", class_="nothing", hidden="")
    groups = [_operation_group(tag, _operations_of_tag(tag["name"])) for tag in document()["tags"]]
    return [element("div", nothing, *groups, id="operations")]


def _operation_group(tag: Node, operations: list[ApiOperation]) -> Html:
    heading = element("h2", tag["name"])
    sections = [operation_section(each, ADDRESS_PLACEHOLDER) for each in operations]
    about = prose_html(tag["description"])
    return element("section", heading, about, *sections, class_="group", id=group_id(tag["name"]))


def _schemas_section() -> Html:
    sections = [schema_section(name, document()["components"]["schemas"][name]) for name in _schema_names()]
    return element("section", element("h2", "Schemas"), *sections, class_="group", id="schemas")


def _operations_of_tag(tag: str) -> list[ApiOperation]:
    return [each for each in operations().values() if tag in each.description["tags"]]


def _schema_names() -> list[str]:
    return sorted(document()["components"]["schemas"])


def _read_page_file(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


JSON_STREAM_MEDIA_TYPE = "application/x-json-stream"


def operation_section(operation: ApiOperation, address: str) -> Html:
    summary = element(
        "summary",
        element("span", operation.method, class_=f"method {operation.method.lower()}"),
        element("h3", element("code", _breakable_path_html(operation.path))),
        element("span", operation.description["summary"], class_="about"),
    )
    content = element(
        "div",
        prose_html(operation.description.get("description", "")),
        _required_scopes_html(operation),
        _parameters_section(operation),
        _request_body_section(operation),
        element("h4", "With curl"),
        element("pre", element("code", _curl_command(operation, address)), class_="curl", tabindex="0"),
        element("h4", "Answers"),
        *_response_items(operation),
        element("p", "operationId ", element("code", operation.id), class_="id"),
        class_="content",
    )
    return element("details", summary, content, class_="entry operation", id=operation.id)


def group_id(text: str) -> str:
    return "group-" + re.sub(r"[^a-z]+", "-", text.lower())


def required_scopes(operation: ApiOperation) -> list[str]:
    """The scopes that a token needs; none for public operations."""
    requirements = operation.description.get("security", document()["security"])
    return [scope for each in requirements for scope in each["oauth2"]]


def _required_scopes_html(operation: ApiOperation) -> Html:
    needed = required_scopes(operation)
    if not needed:
        return element("p", "Open to all.", class_="scopes")
    return element("p", "Scope ", joined_html([element("code", each) for each in needed], ", "), class_="scopes")


def _breakable_path_html(path: str) -> Html:
    """A path that browsers may break after slashes."""
    return joined_html(path.split("/"), between=trusted_html("/<wbr>"))


def _parameters_section(operation: ApiOperation) -> Html | None:
    own = [each for each in operation.parameters if each["name"] != "X-Flow-Id"]
    if not own:
        return None
    return joined_html(
        [element("h4", "Parameters"), table_html(("Name", "Type", "What it is"), list(map(_parameter_row, own)))]
    )


def _parameter_row(parameter: Node) -> Html:
    needed = element("span", "required", class_="mark") if parameter.get("required") else None
    place = element("span", parameter["in"], class_="mark quiet")
    example = parameter.get("example")
    shown = parameter["schema"] if example is None else {**parameter["schema"], "example": example}
    return element(
        "tr",
        element("th", element("code", parameter["name"]), place, needed, scope="row"),
        element("td", type_html(parameter["schema"])),
        element("td", prose_html(parameter["description"]), constraints_html(shown)),
    )


def _request_body_section(operation: ApiOperation) -> Html | None:
    body = operation.description.get("requestBody")
    return joined_html([element("h4", "Body"), *_content_sections(body["content"])]) if body else None


def _content_sections(content: Node) -> list[Html]:
    return [_media_type_section(media_type, each) for media_type, each in content.items()]


def _media_type_section(media_type: str, content: Node) -> Html:
    items = content.get("x-item-schema")
    what = joined_html(["lines of ", type_html(items)]) if items else type_html(content["schema"])
    about = element("p", element("code", media_type), " ", what, class_="media")
    shown = [
        element("details", element("summary", heading), code_block(value), class_="example", open=None if index else "")
        for index, (heading, value) in enumerate(examples_of_media_type(content))
    ]
    return joined_html([about, *shown])


def _response_items(operation: ApiOperation) -> list[Html]:
    """The responses of an operation. Responses that all operations share take one line each, so that the specific ones
    stand out.
    """
    answers = operation.description["responses"]
    special = [status for status in answers if "$ref" not in answers[status]]
    common = [status for status in answers if "$ref" in answers[status]]
    shown = [_response_item(status, operation.responses[status]) for status in special]
    lines = [_common_response_item(status, operation.responses[status]) for status in common]
    return [*shown, element("details", element("summary", "Other answers"), element("dl", *lines), class_="example")]


def _response_item(status: str, response: Node) -> Html:
    headers = [_header_item(name, each) for name, each in response.get("headers", {}).items()]
    return element(
        "section",
        element("h5", _status_html(status), " ", status_phrase(status)),
        prose_html(response["description"]),
        element("ul", *headers, class_="facts") if headers else None,
        *_content_sections({**response.get("content", {}), **response.get("x-optional-body", {})}),
        *_content_sections(response.get("x-dry-run-body", {})),
        class_="answer",
    )


def _header_item(name: str, header: Node) -> Html:
    return element("li", "header ", element("code", f"{name}: {header.get('example', '…')}"))


def _common_response_item(status: str, response: Node) -> Html:
    term = element("dt", _status_html(status), " ", status_phrase(status))
    return joined_html([term, element("dd", prose_html(response["description"]))])


def _status_html(status: str) -> Html:
    return element("span", status, class_=f"status s{status[0]}")


def status_phrase(status: str) -> str:
    return HTTPStatus(int(status)).phrase


def _curl_command(operation: ApiOperation, address: str) -> str:
    """A command line for copying. The address must not be in quotes, because it is filled in later."""
    words = ["curl", *_curl_options(operation), f"'{address}{_example_url(operation)}'"]
    if required_scopes(operation):
        words += ["\\\n  -H", shlex.quote("Authorization: Bearer …")]
    body = operation.description.get("requestBody")
    if body:
        (media_type, content), *_ = body["content"].items()
        words += ["\\\n  -H", shlex.quote(f"Content-Type: {media_type}")]
        words += ["\\\n  -d", shlex.quote(indented_json(examples_of_media_type(content)[0][1]))]
    return " ".join(words)


def _curl_options(operation: ApiOperation) -> list[str]:
    streams = any(JSON_STREAM_MEDIA_TYPE in each.get("content", {}) for each in operation.responses.values())
    method = [] if operation.method in ("GET", "POST") else ["-X", operation.method]
    return ["-N", *method] if streams else method


def _example_url(operation: ApiOperation) -> str:
    path = operation.path
    for each in operation.parameters:
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", quote(example_of_parameter(each), safe=""))
    return path


# The names of elements without a closing tag.
VOID_ELEMENTS = frozenset({"meta", "input", "wbr"})

INLINE_MARKUP_PATTERN = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*")


class Html(str):
    """Text that is HTML. Only this module creates it from plain text."""

    __slots__ = ()


HtmlChild = str | None


def element(name: str, /, *children: HtmlChild, **attributes: str | None) -> Html:
    """An element. `class_` means `class`, an underscore means a dash, and None leaves an attribute out."""
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID_ELEMENTS:
        return Html(f"<{name}{opening}>")
    return Html(f"<{name}{opening}>{joined_html(children)}</{name}>")


def joined_html(children: Iterable[HtmlChild], between: str = "") -> Html:
    return Html(escaped_html(between).join(escaped_html(each) for each in children if each is not None))


def escaped_html(text: str) -> Html:
    return text if isinstance(text, Html) else Html(html.escape(text))


def trusted_html(text: str) -> Html:
    """HTML, CSS or script of our own that must not be escaped."""
    return Html(text)


def prose_html(text: str) -> Html:
    """Paragraphs, lists, `code`, **strong** and *stressed* words: the part of CommonMark that the descriptions use."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return joined_html(_prose_block_html(block) for block in blocks if block)


def _prose_block_html(text: str) -> Html:
    if not text.startswith("- "):
        return element("p", inline_markup_html(_without_line_breaks(text)))
    items = re.split(r"(?:^|\n)- ", text)[1:]
    return element("ul", *(element("li", inline_markup_html(_without_line_breaks(item))) for item in items))


def _without_line_breaks(text: str) -> str:
    return " ".join(text.split())


def inline_markup_html(text: str) -> Html:
    pieces: list[Html] = []
    rest = 0
    for match in INLINE_MARKUP_PATTERN.finditer(text):
        code, strong, stressed = match.groups()
        name, inside = ("code", code) if code else ("strong", strong) if strong else ("em", stressed)
        pieces += [escaped_html(text[rest : match.start()]), element(name, inside)]
        rest = match.end()
    return joined_html([*pieces, escaped_html(text[rest:])])


# The maximum length of a line of JSON.
MAX_JSON_LINE_CHARACTERS = 84

PLURAL_BY_TYPE = {each: f"{each}s" for each in ("string", "integer", "number", "boolean", "object")}


def schema_section(name: str, schema: Node) -> Html:
    summary = element("summary", element("h3", name), element("span", _first_sentence_html(schema), class_="about"))
    example = code_block(schema["example"]) if "example" in schema else None
    content = element(
        "div", prose_html(schema.get("description", "")), _schema_constraints(schema), example, class_="content"
    )
    return element("details", summary, content, class_="entry schema", id=f"schema-{name}")


def _schema_constraints(schema: Node) -> Html | None:
    if "properties" in schema:
        return properties_table(schema)
    if schema["type"] == "array":
        return element("p", type_html(schema))
    return constraints_html(schema)


def properties_table(schema: Node) -> Html:
    required = schema.get("required", ())
    rows = [_property_row(name, each, needed=name in required) for name, each in schema["properties"].items()]
    return table_html(("Member", "Type", "What it is"), rows)


def _property_row(name: str, schema: Node, *, needed: bool) -> Html:
    marks = [element("span", "required", class_="mark") if needed else None]
    marks += [element("span", "never sent", class_="mark quiet") if schema.get("readOnly") else None]
    about = "" if "$ref" in schema else schema.get("description", "")
    if "$ref" in schema:
        about = _first_sentence_html(resolve_reference(schema))
    return element(
        "tr",
        element("th", element("code", name), *marks, scope="row"),
        element("td", type_html(schema)),
        element("td", prose_html(about), constraints_html(schema)),
    )


def table_html(headings: tuple[str, ...], rows: list[Html]) -> Html:
    head = element("thead", element("tr", *(element("th", each, scope="col") for each in headings)))
    return element("div", element("table", head, element("tbody", *rows)), class_="table")


def type_html(schema: Node) -> Html:
    """The type in words, with links to its schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return element("a", name, href=f"#schema-{name}")
    if "type" not in schema:
        return escaped_html("any value")
    if schema["type"] == "array":
        return joined_html(["array of ", _plural_type_html(schema["items"])])
    if isinstance(schema.get("additionalProperties"), dict):
        return joined_html(["object of ", _plural_type_html(schema["additionalProperties"])])
    kind = schema.get("format", "").replace("date-time", "time") or schema["type"]
    return joined_html([kind, " or null" if schema.get("nullable") else None])


def _plural_type_html(schema: Node) -> Html:
    if "$ref" in schema:
        return type_html(schema)
    if "type" not in schema:
        return escaped_html("any values")
    return joined_html([PLURAL_BY_TYPE[schema["type"]], " or nulls" if schema.get("nullable") else None])


def constraints_html(schema: Node) -> Html | None:
    """The allowed values, the limits, and the default."""
    listed = schema if "enum" in schema else schema.get("items", {})
    allowed = [element("code", each) for each in listed.get("enum", ())]
    found = [
        _constraint_item("one of", joined_html(allowed, " ")) if allowed else None,
        _constraint_item("default", _inline_code(schema["default"])) if "default" in schema else None,
        *(_constraint_item(label, _inline_code(schema[key])) for key, label in LABEL_BY_BOUND.items() if key in schema),
        _constraint_item("for example", _inline_code(schema["example"])) if _has_small_example(schema) else None,
    ]
    shown = [each for each in found if each is not None]
    return element("ul", *shown, class_="facts") if shown else None


LABEL_BY_BOUND = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "characters, at least",
    "maxLength": "characters, at most",
    "minItems": "items, at least",
    "pattern": "pattern",
}


def _has_small_example(schema: Node) -> bool:
    return "example" in schema and not isinstance(schema["example"], dict)


def _constraint_item(label: str, value: Html) -> Html:
    return element("li", label, " ", value)


def _inline_code(value: Any) -> Html:
    return element("code", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def code_block(value: Any) -> Html:
    return element("pre", element("code", value if isinstance(value, str) else indented_json(value)), tabindex="0")


def indented_json(value: Any, indent: str = "") -> str:
    """JSON whose short parts stay on one line."""
    compact = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(compact) <= MAX_JSON_LINE_CHARACTERS or not isinstance(value, (dict, list)):
        return compact
    deeper = indent + "  "
    if isinstance(value, list):
        opening, closing, members = "[", "]", [indented_json(each, deeper) for each in value]
    else:
        opening, closing = "{", "}"
        members = [f"{json.dumps(name)}: {indented_json(each, deeper)}" for name, each in value.items()]
    return f"{opening}\n" + ",\n".join(deeper + each for each in members) + f"\n{indent}{closing}"


def _first_sentence_html(schema: Node) -> Html:
    first_line = " ".join(schema.get("description", "").split("\n\n")[0].split())
    return inline_markup_html(first_line.split(". ")[0].rstrip(".:") + ".") if first_line else joined_html([])
