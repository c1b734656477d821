"""The page that shows the API description: complete, safe, and independent of other sites."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
from functools import cache
from html.parser import HTMLParser

import pytest

from nakadi import openapi
from nakadi.http import docs_page
from nakadi.http.docs_page import (
    VOID_ELEMENTS,
    element,
    indented_json,
    inline_markup_html,
    joined_html,
    prose_html,
    type_html,
)
from nakadi.http.message import Request, Response
from nakadi.http.router import Router
from nakadi.http.routes import documentation
from nakadi.openapi.examples import example_of_parameter, example_of_schema


@cache
def whole_page() -> str:
    return docs_page.page_html("https://nakadi.example.org")


class StrictHtmlReader(HTMLParser):
    """Reads a page as a browser does, and insists that tags are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.attributes |= set(found)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [each for each in (found.get("href"), found.get("src")) if each]
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def answer(path: str, **headers: str) -> Response:
    route, _ = Router(documentation.routes()).find_route("GET", path)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = Request(method="GET", path=path, headers=named, declared=route.parameters)
    response = route.handler(request)
    assert isinstance(response, Response)
    return response


def command_line(operation: str, page: str = "") -> list[str]:
    entry = (page or whole_page()).split(f'id="{operation}"')[1]
    found = re.search(r'class="curl".*?<code>(.*?)</code>', entry, re.DOTALL)
    assert found
    return shlex.split(html.unescape(found[1]))


# Content


@pytest.mark.parametrize("operation", openapi.operations().values(), ids=lambda operation: operation.id)
def test_operation_is_shown(operation: openapi.ApiOperation) -> None:
    """Every operation is on the page with its method, its path, its answers and a command line."""
    entry = whole_page().split(f'id="{operation.id}"')[1].split('class="entry')[0]
    assert f">{operation.method}<" in entry
    assert operation.path in entry.replace("<wbr>", "")
    assert html.escape(operation.description["summary"]) in entry
    assert all(f">{status}</span>" in entry for status in operation.responses)
    assert command_line(operation.id)[0] == "curl"


@pytest.mark.parametrize("name", openapi.document()["components"]["schemas"])
def test_schema_is_shown(name: str) -> None:
    """Every schema is on the page, at the target of its links."""
    assert f'id="schema-{name}"' in whole_page()


def test_links_lead_somewhere() -> None:
    """Every link within the page has a target, no target occurs twice, and every tag is closed."""
    reader = StrictHtmlReader(whole_page())
    assert not reader.open
    assert len(reader.ids) == len(set(reader.ids))
    assert {link for link in reader.links if link.startswith("#")} <= {f"#{each}" for each in reader.ids}


def test_command_line_can_be_run() -> None:
    """A command line has the address at which the reader found the broker, and a JSON body."""
    assert command_line("get_event_type")[1] == "https://nakadi.example.org/event-types/order.created"
    assert command_line("delete_event_type")[1:3] == ["-X", "DELETE"]
    assert command_line("stream_events")[1] == "-N"
    assert command_line("get_health") == ["curl", "https://nakadi.example.org/health"]
    published = command_line("publish_events")
    assert published[published.index("-H") + 1] == "Authorization: Bearer …"
    assert json.loads(published[published.index("-d") + 1])[0]["order"] == "4711"


# Excluded content


def test_nothing_is_loaded_from_elsewhere() -> None:
    """The page loads nothing from other sites: its only link that leaves the page leads to the same broker's OpenAPI
    document."""
    reader = StrictHtmlReader(whole_page())
    assert {link for link in reader.links if not link.startswith("#")} == {"openapi.json"}
    assert not re.search(r"url\(|@import", whole_page())
    assert not {each for each in reader.attributes if each.startswith("on") or each == "style"}


def test_policy_allows_the_page_and_nothing_else() -> None:
    """The policy allows exactly the style and the script on the page, and forbids everything else."""
    policy = answer("/docs").headers["content-security-policy"]
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", whole_page(), re.DOTALL)
        fingerprint = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{fingerprint}'" in policy
    assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({"host": "localhost:8080"}, "http://localhost:8080"),
        ({"host": "nakadi.example.org", "x_forwarded_proto": "https"}, "https://nakadi.example.org"),
        ({"host": "nakadi.example.org", "x_forwarded_proto": "https, http"}, "https://nakadi.example.org"),
        ({"host": "[::1]:8080"}, "http://[::1]:8080"),
        ({}, "http://localhost:8080"),
        ({"host": "x'; rm -rf ~; '"}, "http://localhost:8080"),
        ({"host": '"><script>alert(1)</script>'}, "http://localhost:8080"),
        ({"host": "a.example", "x_forwarded_proto": "javascript"}, "http://a.example"),
    ],
)
def test_address_is_the_one_that_was_asked(headers: dict[str, str], address: str) -> None:
    """The page names the host of the request, but nothing that cannot be a host."""
    page = answer("/docs", **headers).body.decode()
    assert command_line("get_health", page) == ["curl", f"{address}/health"]
    assert "alert(1)" not in page


# How it is answered


def test_page_is_html() -> None:
    """The page is HTML in UTF-8, and browsers do not guess another type."""
    response = answer("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.body.decode().startswith("<!doctype html>")


def test_document_is_json() -> None:
    """Programs get the same content as JSON."""
    response = answer("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert json.loads(response.body) == openapi.document()


# The parts of the page


@pytest.mark.parametrize("dangerous", ["<script>", "a & b", '"quoted"', "it's"])
def test_text_is_escaped(dangerous: str) -> None:
    """Text never becomes HTML, wherever on the page it is."""
    escaped = html.escape(dangerous)
    assert element("p", dangerous) == f"<p>{escaped}</p>"
    assert element("p", title=dangerous) == f'<p title="{escaped}"></p>'
    assert prose_html(f"one\n\n- {dangerous}") == f"<p>one</p><ul><li>{escaped}</li></ul>"
    assert inline_markup_html(f"`{dangerous}`") == f"<code>{escaped}</code>"
    assert joined_html([dangerous, element("b", dangerous)], between=dangerous) == f"{escaped}{escaped}<b>{escaped}</b>"


def test_prose_has_paragraphs_and_lists() -> None:
    """The Markdown in descriptions is rendered."""
    text = "A *first*\nline with `code`.\n\n- one\n  and a half\n- **two**\n"
    assert prose_html(text) == (
        "<p>A <em>first</em> line with <code>code</code>.</p>"
        "<ul><li>one and a half</li><li><strong>two</strong></li></ul>"
    )


def test_types_are_reported_in_words() -> None:
    """A type is described in words, with links to the schemas in it."""
    link = '<a href="#schema-Cursor">Cursor</a>'
    assert type_html({"type": "array", "items": {"$ref": "#/components/schemas/Cursor"}}) == f"array of {link}"
    assert type_html({"type": "string", "format": "date-time", "nullable": True}) == "time or null"
    assert type_html({"type": "object", "additionalProperties": {"type": "string"}}) == "object of strings"


def test_short_json_stays_on_a_line() -> None:
    """JSON is formatted for readers, and parses to the same value."""
    value = {"short": [1, 2], "long": ["x" * 50, {"y": "ö" * 40}]}
    assert json.loads(indented_json(value)) == value
    assert '\n  "short": [1, 2],\n' in indented_json(value)


def test_examples_are_put_together() -> None:
    """Without an example, one is assembled from the parts of a schema."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}}}}
    assert example_of_schema(schema) == {"a": ["x"]}
    assert example_of_parameter({"schema": {"type": "boolean", "default": False}}) == "false"
