"""The description of the API as one page for a browser, which loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from nakadi.http.docs_page.markup import Html, element, joined, prose, trusted
from nakadi.http.docs_page.operations import operation_section, slug
from nakadi.http.docs_page.schemas import schema_section
from nakadi.http.openapi import Node, Operation, document, operations

# Stands for the address of the broker until it is known who looks. No text of ours contains it.
ADDRESS = "\u0001address\u0001"


def page(address: str) -> str:
    """The page for somebody who reaches the broker at this address, `https://nakadi.example.org`."""
    return _page().replace(ADDRESS, str(joined([address])))


@cache
def content_security_policy() -> str:
    """The page's own style and script, to the letter, and nothing else."""
    return (
        f"default-src 'none'; style-src '{_fingerprint(_own('page.css'))}'; "
        f"script-src '{_fingerprint(_own('page.js'))}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _page() -> str:
    title = document()["info"]["title"]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title}: the API"),
        element("style", trusted(_own("page.css"))),
    )
    body = element(
        "body",
        element("a", "Skip to the operations", class_="skip", href="#operations"),
        _navigation(),
        element("main", _introduction(), *_groups(), _schemas()),
        element("script", trusted(_own("page.js"))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _navigation() -> Html:
    search = element("input", type="search", id="search", placeholder="Search", aria_label="Search", autocomplete="off")
    groups = [_navigation_group(tag["name"], _of_tag(tag["name"])) for tag in document()["tags"]]
    names = [element("li", element("a", name, href=f"#schema-{name}")) for name in _schema_names()]
    schemas = element("section", element("h2", element("a", "Schemas", href="#schemas")), element("ul", *names))
    menu = element("details", element("summary", "Contents"), *groups, schemas, class_="menu", open="")
    title = element("a", document()["info"]["title"], class_="title", href="#top")
    return element("nav", element("div", title, search, class_="bar"), menu, aria_label="Contents")


def _navigation_group(tag: str, members: list[Operation]) -> Html:
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
        for each in members
    ]
    return element("section", element("h2", element("a", tag, href=f"#{slug(tag)}")), element("ul", *entries))


def _introduction() -> Html:
    info = document()["info"]
    version = element("span", info["version"], class_="version")
    description = element("a", "OpenAPI document", href="openapi.json")
    return element(
        "header",
        element("h1", info["title"], " ", version),
        prose(info["description"]),
        element("p", "For programs there is the same as an ", description, ". This broker is at ", _address(), "."),
        id="top",
    )


def _address() -> Html:
    return element("code", trusted(ADDRESS))


def _groups() -> list[Html]:
    nothing = element("p", "Nothing here has all of these words in it.", class_="nothing", hidden="")
    return [
        element("div", nothing, *(_group(tag, _of_tag(tag["name"])) for tag in document()["tags"]), id="operations")
    ]


def _group(tag: Node, members: list[Operation]) -> Html:
    heading = element("h2", tag["name"])
    sections = [operation_section(each, ADDRESS) for each in members]
    return element("section", heading, prose(tag["description"]), *sections, class_="group", id=slug(tag["name"]))


def _schemas() -> Html:
    sections = [schema_section(name, document()["components"]["schemas"][name]) for name in _schema_names()]
    return element("section", element("h2", "Schemas"), *sections, class_="group", id="schemas")


def _of_tag(tag: str) -> list[Operation]:
    return [each for each in operations().values() if tag in each.description["tags"]]


def _schema_names() -> list[str]:
    return sorted(document()["components"]["schemas"])


def _own(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")


def _fingerprint(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
