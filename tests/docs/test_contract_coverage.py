"""The contract, the tests and the documentation refer to the same statements."""

import re
from collections import Counter

import pytest

from nakadi import openapi
from tests.support.pages import ROOT, read_text
from tests.support.statements import (
    AREAS,
    CITED,
    CONTRACT,
    FLAGS,
    citations,
    expand_ranges,
    find_citations,
    sort_key,
    statements,
    traps,
)

COMPATIBILITY = ROOT / "docs" / "compatibility.md"
INDEX_ROW = re.compile(r"^\| (?:`([A-Z]+ /\S*)`|[^|]+) \| (.+) \|$", re.MULTILINE)
TO_COMPATIBILITY = re.compile(r"\]\(\.\./compatibility\.md#([\w-]+)\)")
LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")

# Statements that no test cites.
NOT_SHOWN = {
    "L64": "a figure of speed, which tests do not bound",
    "R280": "says how the other statements are to be read",
}


@pytest.fixture(scope="module")
def statements_by_number():
    """The statements by their numbers."""
    return {statement.number: statement for statement in statements()}


def test_every_item_of_the_contract_is_a_statement():
    """An item of the contract with an anchor has a number, one of the flags, and a text."""
    lines = [line for page in CONTRACT.glob("*.md") for line in page.read_text().splitlines()]

    assert len(statements()) == sum(line.startswith('- <a id="') for line in lines) > 0
    assert {statement.area for statement in statements()} == set(AREAS)
    assert {statement.flag for statement in statements()} == set(FLAGS)


def test_the_number_of_a_statement_is_unique_and_its_anchor():
    """A statement's anchor is its number in lower case, and no other statement has that number."""
    assert [number for number, count in Counter(each.number for each in statements()).items() if count > 1] == []
    assert [each.number for each in statements() if each.anchor != each.number.lower()] == []


def test_every_citation_of_a_test_exists_in_the_contract(statements_by_number):
    """Every statement that a test's docstring cites exists."""
    assert [each for each in citations() if each.cited not in statements_by_number and each.cited not in traps()] == []


def test_every_statement_is_cited_by_a_test_or_says_why_not(statements_by_number):
    """Statements that no test cites are on a list with the reason, and the list has no others."""
    not_cited = set(statements_by_number) - {each.cited for each in citations()}

    assert sorted(not_cited, key=sort_key) == sorted(NOT_SHOWN, key=sort_key)
    assert not {number for number in NOT_SHOWN if statements_by_number[number].flag == "core"}


def test_the_index_has_every_operation_once():
    """Each operation of the OpenAPI description has its row in the index by endpoint."""
    operations = [f"{each.method} {each.path}" for each in openapi.operations().values()]

    assert sorted(operation for operation, _ in index_rows() if operation) == sorted(operations)


# Every request may have this header; R38 to R40 apply to all of them.
FLOW_ID = "X-Flow-Id"


def test_every_parameter_is_named_by_a_statement(statements_by_number):
    """Each query parameter and header of an operation occurs in a statement to which the operation's row of the
    index links.
    """
    rows = dict(index_rows())
    not_named = [
        f"{operation}: {each['name']}"
        for operation, parameters in parameters_by_operation().items()
        for each in parameters
        if not any(is_about_parameter(statements_by_number[number].text, each["name"]) for number in rows[operation])
    ]
    assert not_named == []


def parameters_by_operation():
    """The parameters of each operation that its own statements have to name."""
    return {
        f"{each.method} {each.path}": [
            parameter for parameter in each.parameters if parameter["in"] != "path" and parameter["name"] != FLOW_ID
        ]
        for each in openapi.operations().values()
    }


def is_about_parameter(statement, parameter):
    """Whether a statement is about a parameter: it has `name=value`, or the name together with the word parameter or
    header, because members of bodies have the same names.
    """
    name = re.escape(parameter)
    if re.search(rf"[`?&]{name}=", statement):
        return True
    return bool(
        re.search(r"\b(parameter|header)s?\b", statement, re.IGNORECASE)
        and re.search(rf"`{name}[`:]", statement, re.IGNORECASE)
    )


@pytest.mark.parametrize(
    ("statement", "is_named"),
    [
        ("`category={x}`: exact match.", True),
        ("`GET /things?limit=5&category=x` → 200", True),
        ("Query parameters: `category`, `limit`.", True),
        ("The header `Category: x` is optional.", True),
        ("Full objects have `category` and `name`.", False),
        ("`subcategory={x}` is a parameter.", False),
    ],
)
def test_a_parameter_is_no_member_of_a_body(statement, is_named):
    """A statement about a body member does not count for a parameter with the same name."""
    assert is_about_parameter(statement, "category") is is_named


def test_the_index_leads_to_every_statement(statements_by_number):
    """The index links to each statement of the contract, and to nothing else."""
    assert {number for _, numbers in index_rows() for number in numbers} == set(statements_by_number)


def test_differences_are_reported_by_the_contract_and_by_compatibility(statements_by_number):
    """A statement that describes a difference here links to compatibility, which links back from the same section."""
    linked = {
        (number, section)
        for number, statement in statements_by_number.items()
        for section in TO_COMPATIBILITY.findall(statement.text)
    }
    listed = {(number, section) for section, text in sections_of_compatibility() for number in find_citations(text)}

    assert {number for number, _ in linked} == {number for number, _ in listed}
    assert linked <= listed
    assert {number for number, each in statements_by_number.items() if "*Here:*" in each.text} == {
        number for number, _ in linked
    }


def index_rows():
    """The rows of the index: the operation, or None if the row is about several, and the statements."""
    text = read_text(CONTRACT / "README.md").partition("## Index by endpoint")[2]
    return [
        (operation or None, CITED.findall(expand_ranges(LINKED.sub(r"\1", links))))
        for operation, links in INDEX_ROW.findall(text)
    ]


def sections_of_compatibility():
    """The sections of the page, each with its anchor and its text without links."""
    for section in read_text(COMPATIBILITY).split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        yield title.lower().replace(" ", "-"), LINKED.sub(r"\1", text)
