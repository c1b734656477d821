"""Attacks with schemas and events, none of which succeed."""

import ast
import builtins
import sys
import tokenize
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nakadi.model.outcomes import Invalid
from nakadi.schemas.document import SchemaDocument
from nakadi.schemas.explanation import NO_EXPLANATION_MESSAGE
from nakadi.schemas.keywords import CodeConstants
from nakadi.schemas.validation import NAMES_IN_GENERATED_CODE, _CodeGenerator, compile_validator
from tests.support.patience import measure_cpu
from tests.support.schemas import VALUES, schemas

SEVEN = "http://json-schema.org/draft-07/schema#"


def source_of(schema) -> str:
    document = SchemaDocument.from_root(schema)
    generator = _CodeGenerator(document, CodeConstants(NAMES_IN_GENERATED_CODE))
    generator.queue_function_once(document.root)
    return "\n".join(generator.generate_sources())


# Access from schemas

REFERENCES = [
    "http://127.0.0.1:{port}/schema.json",
    "https://127.0.0.1:{port}/schema.json#/definitions/a",
    "//127.0.0.1:{port}/schema.json",
    "file:///etc/hostname",
    "FILE:///etc/hostname#",
    "/etc/hostname",
    "schema.json",
    "./schema.json#/definitions/a",
    "../schema.json",
    "?a",
    "urn:example:a",
    "data:application/json,{{}}",
    "ftp://127.0.0.1:{port}/a",
    "",
    " #",
    "http://json-schema.org/draft-04/schema#",
]


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("place", ["properties", "definitions", "id", "$schema"])
def test_references_to_elsewhere(reference, place):
    """A reference that leaves the schema is refused, without access to any file, name server or network. (R154)"""
    reached: list[str] = []
    schema: dict[str, Any] = {"properties": {"a": {"$ref": reference.format(port=1)}}}
    if place == "definitions":
        schema = {"definitions": schema["properties"], "items": {"$ref": "#/definitions/a"}}
    elif place == "id":
        schema |= {"id": "http://127.0.0.1:1/base/", "$id": "file:///etc/"}
    elif place == "$schema":
        schema |= {"$schema": SEVEN}
    with watching(reached), pytest.raises(Invalid) as refused:
        compile_validator(schema)
    address = reference.format(port=1).partition("#")[0]
    assert refused.value.detail == f"external url reference is not supported: {address}"
    assert reached == []


class watching:  # noqa: N801  # it reads as a verb
    """Records the interpreter's audit events while it is active."""

    OUTSIDE = ("open", "socket.", "urllib.", "subprocess.", "os.system", "import")
    _reached: list[str] | None = None

    def __init__(self, reached: list[str]) -> None:
        self._mine = reached

    def __enter__(self) -> None:
        watching._reached = self._mine

    def __exit__(self, *_: object) -> None:
        watching._reached = None

    @classmethod
    def note_audit_event(cls, event: str, arguments: Any) -> None:
        if cls._reached is not None and event.startswith(cls.OUTSIDE):
            cls._reached.append(f"{event} {arguments}")


# A hook stays as long as the process, so there is one hook for all tests, which ignores events between them.
sys.addaudithook(watching.note_audit_event)


@pytest.mark.parametrize("name", ["id", "$id", "$schema", "title", "description", "default", "$comment", "links"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "file:///etc/hostname", "//[", "http://[::1", "\0"])
def test_other_addresses_in_schemas(name, url):
    """An address that is not a reference is only a string. (R154)"""
    reached: list[str] = []
    schema = {"properties": {"a": {name: url, "type": "string"}}, "definitions": {"b": {name: url}}}
    with watching(reached):
        assert compile_validator(schema).accepts({"a": "b"})
    assert reached == []


# Words that look like code

PAYLOADS = [
    "canary()",
    '" + canary() + "',
    "' + canary() + '",
    '"""\ncanary()\n"""',
    "'''\ncanary()\n'''",
    "]; canary(); [",
    "): canary(); (",
    "\ncanary()\n",
    "\r    canary()\r",
    "\\",
    '\\"; canary() #',
    "\\'; canary() #",
    "{canary()}",
    "{0.__class__.__base__.__subclasses__}",
    "{variable}",
    "{{{",
    "}}",
    "%(canary)s %s %n",
    "\u2028canary()\u2029",
    "\x85canary()",
    "\x0ccanary()",
    "\0",
    "#",
    "\ud800",
    "value",
    "steps",
    "return True",
    "f1",
    "k1",
    "__builtins__",
    "__import__('os').system('true')",
    "\u202ecanary()",
]


def schema_with_word(word: str) -> dict[str, Any]:
    """A schema with this word wherever a schema can have any string."""
    quoted = "".join(f"\\x{{{ord(letter):x}}}" for letter in word if not 0xD800 <= ord(letter) < 0xE000)
    pointed = word.replace("~", "~0").replace("/", "~1").replace("%", "%25")
    return {
        "$schema": SEVEN + word,
        "$id": word,
        "id": word,
        "title": word,
        "description": word,
        "$comment": word,
        "default": word,
        word + "!": word,
        "definitions": {word + "d": {"title": word}},
        "properties": {
            word + "1": {"type": "string", "enum": [word, word + "x"], "default": word},
            word + "2": {"const": {word: [word]}},
            word + "3": {"pattern": quoted, "format": word},
            word + "4": {"properties": {word: {"properties": {word: {"enum": [word]}}}}, "required": [word]},
            word + "5": {"$ref": f"#/definitions/{pointed}d"},
            word + "6": {"items": [{"enum": [word]}], "additionalItems": {"const": word}},
            word + "7": {"contentEncoding": word, "contentMediaType": word, "examples": [word]},
            word + "8": {"enum": [{word: word}, [word]]},
        },
        "patternProperties": {"^z" + quoted: {"const": word}},
        "additionalProperties": {"enum": [word]},
        "required": [word + "1"],
        "dependencies": {word + "1": [word + "2"], word + "2": {"required": [word + "1"]}},
        "propertyNames": {"not": {"const": word}},
        "if": {"required": [word]},
        "then": {"properties": {word: {"const": word}}},
    }


def event_everywhere(word: str) -> dict[str, Any]:
    return {
        word + "1": word,
        word + "2": {word: [word]},
        word + "4": {word: {word: word}},
        word + "5": word,
        word + "6": [word, word],
        word + "8": {word: word},
    }


@pytest.mark.parametrize("payload", PAYLOADS)
def test_words_as_code(payload, monkeypatch):
    """No word in a schema is ever executed, and every word stands for itself. (P56, R181)"""
    called: list[int] = []
    monkeypatch.setattr(builtins, "canary", lambda: called.append(1), raising=False)
    reached: list[str] = []
    with watching(reached):
        validator = compile_validator(schema_with_word(payload))
        good, bad = event_everywhere(payload), event_everywhere(payload) | {payload + "1": payload + "y"}
        assert validator.accepts(good), validator.explain(good)
        assert not validator.accepts(bad)
        assert payload + "y is not a valid enum value" in validator.explain(bad)
    assert called == reached == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_source_and_words(payload):
    """The code for a schema is the same whatever words it contains. (P56)"""
    assert source_of(schema_with_word(payload)) == source_of(schema_with_word("harmless"))


KNOWN_NAMES = (
    {"value", "steps", "name", "member", "item", "known", "matching", "StepsExhausted", "all_differ", "KeyError"}
    | {"def", "return", "if", "else", "try", "except", "raise", "for", "in", "not", "and", "or", "is", "break", "pass"}
    | {"True", "False", "None", "type", "len", "dict", "list", "str", "int", "float", "items", "values"}
)


@pytest.mark.parametrize("draft", [4, 6, 7])
def test_vocabulary_of_code(draft):
    """The code consists of the generator's own names, numbers and operators; it contains no string literals. (P56)"""

    @settings(max_examples=60)
    @given(schemas(draft))
    def check(schema):
        for token in tokenize.generate_tokens(StringIO(source_of(schema)).readline):
            assert token.type != tokenize.STRING
            if token.type == tokenize.NAME:
                assert token.string in KNOWN_NAMES or (token.string[0] in "fkv" and token.string[1:].isdecimal())

    check()


def test_what_code_can_see():
    """The code has no built-in functions except for those that it is given, and no way to import. (P56)"""
    names = {node.id for node in ast.walk(ast.parse(source_of(schema_with_word("a")))) if isinstance(node, ast.Name)}

    assert CodeConstants(NAMES_IN_GENERATED_CODE).namespace["__builtins__"] == {}
    assert not names & {"__import__", "eval", "exec", "open", "getattr", "globals"}


# Values that are not schemas

KEYWORDS = st.sampled_from(
    """
    $ref $schema additionalItems additionalProperties allOf anyOf const contains definitions dependencies else enum
    exclusiveMinimum format id if items maxLength minItems minimum multipleOf not oneOf pattern patternProperties
    properties propertyNames required then type uniqueItems anything
    """.split()  # noqa: SIM905  # a paragraph reads better than forty words in quotes
)
WORDS = ["", "a", "(", "string", "#", "#/definitions/a", SEVEN, "\ud800"]
NONSENSE: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, 1e300, 10**40, *WORDS]),
    lambda within: st.lists(within, max_size=3) | st.dictionaries(KEYWORDS, within, max_size=4),
    max_leaves=10,
)


@settings(max_examples=150)
@given(st.dictionaries(KEYWORDS, NONSENSE, max_size=5), VALUES)
def test_any_value_is_refused_or_is_a_usable_schema(schema, value):
    """Any value that is submitted as a schema is refused with a reason, or can check every event. (R153, R157)"""
    try:
        validator = compile_validator(schema)
    except Invalid:
        return
    assert validator.accepts(value) == (validator.explain(value) == NO_EXPLANATION_MESSAGE)


# Infinite recursion


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"oneOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"dependencies": {"a": {"$ref": "#"}}},
        {"$schema": SEVEN, "if": {"$ref": "#"}},
        {"$schema": SEVEN, "if": {}, "then": {"$ref": "#"}},
        {"items": {"$ref": "#/definitions/a"}, "definitions": {"a": {"$ref": "#/definitions/a"}}},
        {
            "$ref": "#/definitions/a",
            "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}},
        },
    ],
)
def test_schemas_without_end(schema):
    """A schema that applies itself to the same value is refused, because the check would never end. (R153)"""
    with pytest.raises(Invalid, match="refers back to itself"):
        compile_validator(schema)


def test_long_chains_of_references():
    """A chain of a thousand references is refused rather than followed. (R153)"""
    definitions = {f"d{number}": {"$ref": f"#/definitions/d{number + 1}"} for number in range(1000)} | {"d1000": {}}
    with pytest.raises(Invalid):
        compile_validator({"$ref": "#/definitions/d0", "definitions": definitions})


# Patterns that take exponential time in other engines

WILD = ["^(a+)+$", "^(a|a)*$", "^(a*)*b", "(.*)*x", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a?){30}a{30}", "^(.+.+)+y$"]


@pytest.mark.parametrize("pattern", WILD)
def test_wild_patterns(pattern):
    """Patterns that take for ever with other engines take time in proportion to the text. (R155)"""
    validator = compile_validator({"pattern": pattern, "items": {"pattern": pattern}})

    def judge():
        for length in (30, 1_000, 100_000):
            validator.accepts("a" * length + "!")
            validator.accepts(["a" * length + "!"])

    assert measure_cpu(judge) < 5000
