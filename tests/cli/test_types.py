"""`nakadi types`: its sources and its output, in which no name becomes code."""

from __future__ import annotations

import ast
import json
import re
import sys
from itertools import count
from random import Random
from types import ModuleType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nakadi.model.event_type import Category
from nakadi_cli.failures import BadInput
from nakadi_cli.generating.declarations import Declarations
from nakadi_cli.generating.event_types import EventTypeSchema
from nakadi_cli.generating.examples import make_examples
from nakadi_cli.generating.go import write_go
from nakadi_cli.generating.java import write_java
from nakadi_cli.generating.kotlin import write_kotlin
from nakadi_cli.generating.names import comment_lines
from nakadi_cli.generating.python import Models, write_python
from nakadi_cli.generating.reading import read_declarations
from nakadi_cli.generating.typescript import write_typescript
from nakadi_cli.type_commands import LANGUAGES
from tests.support.api import create_event_type
from tests.support.pages import ROOT
from tests.support.random_events import RandomSchemas
from tests.support.type_samples import EVENT_TYPES, FRAGMENTS, RICH, a_hostile_schema, an_event_type

NUMBERS = count(1)
LIST_OF_ITSELF = {"l": {"items": {"$ref": "#/definitions/l"}}}
ORDER_PLACED = str(ROOT / "events/event_types/order.placed.json")


def python_names(declarations: Declarations, models: Models) -> dict[str, type]:
    """Run a module of generated types as if it were imported."""
    module = ModuleType(f"generated_types_{next(NUMBERS)}")
    # pydantic, msgspec and dataclasses look up names in this module.
    sys.modules[module.__name__] = module
    exec(compile(write_python(declarations, models), module.__name__, "exec"), module.__dict__)
    return module.__dict__


def round_trip(models: Models, kind: type, event: object) -> object:
    text = json.dumps(event).encode()
    if models is Models.PYDANTIC:
        return json.loads(kind.model_validate_json(text).model_dump_json())
    return json.loads(msgspec.json.encode(msgspec.json.decode(text, type=kind)))


@pytest.fixture(autouse=True, scope="module")
def forgotten_modules():
    """Remove the generated modules after the tests."""
    yield
    for name in [each for each in sys.modules if each.startswith("generated_types_")]:
        del sys.modules[name]


# The command


def test_types_of_a_schema_in_the_broker(run, api):
    """Types name the version of their schema; the user can choose an older version."""
    name = create_event_type(api, schema={"type": "object", "properties": {"a": {"type": "string"}}})["name"]
    definition = api.get(f"/event-types/{name}").json()
    definition["schema"]["schema"] = json.dumps(
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    )
    api.put(f"/event-types/{name}", json=definition).raise_for_status()

    newest = run("types", "typescript", name).out
    first = run("types", "typescript", f"{name}@1.0.0").out

    assert f"//   {name} 1.1.0\n" in newest
    assert "  a?: string;\n  b?: number;\n" in newest
    assert f"//   {name} 1.0.0\n" in first
    assert "b?" not in first
    assert run("types", "typescript", "no.such.type").code == 5


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_file_is_checked(run, tmp_path, language):
    """--to writes a file, and --check says whether it has the types of the schema."""
    suffix = {"python": "py", "typescript": "ts", "kotlin": "kt", "go": "go", "java": "java"}[language]
    written = tmp_path / f"Events.{suffix}"
    arguments = ("types", language, "-f", ORDER_PLACED, "--to", str(written))

    assert run(*arguments, "--check").code == 2
    assert run(*arguments).code == 0
    assert written.read_text() == run(*arguments[:-2]).out
    assert run(*arguments, "--check").code == 0
    written.write_text(written.read_text() + "\n")
    assert run(*arguments, "--check").code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("python",), "Name an event type, or a file with -f."),
        (("python", "-f", ORDER_PLACED, "--check"), "Name the file to check with --to."),
        (("go", "-f", ORDER_PLACED, "--models", "msgspec"), "--models has no meaning for go."),
        (("python", "-f", ORDER_PLACED, "--package", "shop"), "shop is not a package for python."),
        (("java", "-f", ORDER_PLACED, "--package", "a;pwned()"), "a;pwned() is not a package for java."),
        (("kotlin", "-f", ORDER_PLACED, "--native-dates"), "--native-dates is for python, go, java"),
        (("java", "-f", ORDER_PLACED, "--to", "a b.java"), "a b is not the name of a class."),
        (("java", "-f", "/no/such/file.json"), "/no/such/file.json cannot be read"),
    ],
)
def test_options_without_a_meaning_are_refused(run, arguments, message):
    done = run("types", *arguments)

    assert done.code == 2
    assert message in done.err


def test_the_same_schemas_give_the_same_text():
    """The output depends only on the schemas, not on earlier runs or on the time."""
    for write in (
        write_typescript,
        lambda given: write_python(given, Models.MSGSPEC),
        lambda given: write_go(given, None),
    ):
        assert write(read_declarations(EVENT_TYPES)) == write(read_declarations(EVENT_TYPES))
    text = write_typescript(read_declarations(EVENT_TYPES))
    alone = write_typescript(read_declarations(EVENT_TYPES[:1]))
    assert alone.partition("export")[2].partition("/** What the producer")[0] in text


# Output


def test_categories_add_metadata():
    """A business event has metadata, a data event an envelope; without metadata, only the owner's schema counts."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    event = an_event_type(schema, "a.changed", category=Category.DATA)

    text = write_typescript(read_declarations([event]))
    assert "data: AChangedData;" in text
    assert "metadata: EventMetadata;" in text
    assert 'AChangedDataOp = "C" | "U" | "D" | "S"' in text
    for name, kind in (("eid", "string"), ("published_by?", "string"), ("cloudevent?", "Record<string, string>")):
        assert f"  {name}: {kind};" in text
    plain = write_typescript(read_declarations([event.without_metadata()]))
    assert "metadata" not in plain
    assert "export interface AChanged {\n  a?: string;\n}" in plain


@pytest.mark.parametrize(
    ("schema", "typescript"),
    [
        ({"allOf": [{"properties": {"x": {"type": "string"}}}, {"required": ["x"]}]}, "  x: string;"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}}, "  a?: number | null;"),
        ({"properties": {"a": {"enum": [1, 2, None]}}}, "  a?: number | null;"),
        ({"properties": {"a": {"enum": ["x", None]}}}, '= "x";'),
        ({"properties": {"a": {"items": [{"type": "string"}], "additionalItems": False}}}, "  a?: string[];"),
        ({"properties": {"a": {"patternProperties": {"^x": {"type": "null"}}, "type": "object"}}}, "unknown>;"),
        ({"properties": {"k": {}}, "oneOf": [{"properties": {"v": {"type": "string"}}}, {}]}, "  v?: string;"),
        ({"properties": {"a": {"$ref": "#/definitions/l"}}, "definitions": LIST_OF_ITSELF}, "  a?: unknown[];"),
        ({"properties": {"a": {"oneOf": [{"properties": {"x": {}}}, {"properties": {"y": {}}}]}}}, "  a?: EA | EA_;"),
        ({"properties": {"": {"type": "string"}, "b": {"type": "boolean"}}}, "{\n  b?: boolean;"),
    ],
)  # fmt: skip
def test_generated_types_mean_what_schemas_mean(schema, typescript):
    assert typescript in write_typescript(read_declarations([EventTypeSchema("e", {"type": "object", **schema})]))


@pytest.mark.parametrize("models", [Models.PYDANTIC, Models.MSGSPEC])
def test_events_survive_types_of_python(models):
    """A model writes back its input: null, absent members, and names that Python does not allow."""
    names = python_names(read_declarations([an_event_type(RICH)]), models)

    for event in make_examples(RICH, 30):
        assert round_trip(models, names["OrderPlaced"], event) == event


def test_dataclasses_read_events():
    """A dataclass has those members of an event whose names Python allows."""
    names = python_names(read_declarations([an_event_type(RICH)]), Models.DATACLASS)
    [event] = make_examples(RICH, 1)

    order = msgspec.convert(event, names["OrderPlaced"])
    assert order.total.currency == event["total"]["currency"]
    assert order.lines[0].sku == event["lines"][0]["sku"]


@given(st.integers(0, 100_000), st.sampled_from([Models.PYDANTIC, Models.MSGSPEC]))
def test_types_accept_every_valid_event(seed, models):
    """For any schema, its types read all events that are valid under it."""
    schema = RandomSchemas(Random(seed)).root().schema
    try:
        events = make_examples(schema, 5)
    except BadInput:
        return
    kind = python_names(read_declarations([an_event_type(schema)]), models)["OrderPlaced"]

    for event in events:
        round_trip(models, kind, event)


# Hostile schemas


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {f"m{number}": {} for number in range(100_000)}}, "too large"),
        ({"type": "object", "allOf": [{"$ref": "#"}]}, "refers back to itself"),
        ({"properties": {"a": {"$ref": "http://example.org/schema"}}}, "external url reference is not supported"),
        ({"properties": {"x" * 2_000: {}}}, "names in types have 1000 at most"),
    ],
)
def test_hostile_schemas_are_refused(run, tmp_path, schema, message):
    """A hostile schema costs bounded work, and is refused with a sentence."""
    (tmp_path / "hostile.json").write_text(json.dumps(schema))
    done = run("types", "python", "-f", str(tmp_path / "hostile.json"))

    assert done.code == 2
    assert message in done.err


ALIASES = "".join(f"k{number}: &k{number} [*k{number - 1}, *k{number - 1}]\n" for number in range(1, 40))


@pytest.mark.parametrize("text", ["[" * 100_000, f"k0: &k0 [x]\n{ALIASES}", "a: &a [*a]"])
def test_hostile_files_are_refused(run, tmp_path, text):
    """Deep nesting, aliases of YAML and a list that contains itself take little time."""
    (tmp_path / "hostile.yaml").write_text(text)

    assert run("types", "python", "-f", str(tmp_path / "hostile.yaml")).code == 2


def test_references_that_multiply_are_refused():
    """If each level of properties refers to the next one twice, the number of types would explode, so the schema is
    refused.
    """
    definitions = {
        f"d{number}": {
            "items": {"anyOf": [{"$ref": f"#/definitions/d{number + 1}"}, {"$ref": f"#/definitions/d{number + 1}"}]}
        }
        for number in range(30)
    }
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/d0"}},
        "definitions": {**definitions, "d30": {}},
    }

    with pytest.raises(BadInput, match="expands too far"):
        read_declarations([an_event_type(schema)])


def test_too_many_members_for_java():
    """A schema with more members than a class of the JVM can have is refused, and the message says so."""
    wide = read_declarations([an_event_type({"properties": {f"m{number}": {} for number in range(300)}})])

    for write in (lambda: write_kotlin(wide, None), lambda: write_java(wide, None, "Events")):
        with pytest.raises(BadInput, match="OrderPlaced has 300 members"):
            write()


HOSTILE_TEXTS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=5).map("".join)
HOSTILE_SCHEMAS = st.recursive(
    st.one_of(
        st.just({"type": "string"}),
        st.lists(HOSTILE_TEXTS, min_size=1, max_size=4, unique=True).map(lambda values: {"enum": values}),
    ),
    lambda inner: st.builds(
        lambda members, title, text: {"type": "object", "properties": members, "title": title, "description": text},
        st.dictionaries(HOSTILE_TEXTS, inner, max_size=4),
        HOSTILE_TEXTS,
        HOSTILE_TEXTS,
    ),
    max_leaves=8,
)


@given(HOSTILE_SCHEMAS, HOSTILE_TEXTS, st.sampled_from(Models))
def test_no_name_becomes_code_in_python(schema, name, models):
    """For any schema, a module has classes with annotated fields and nothing else."""
    text = write_python(read_declarations([an_event_type({"properties": {"a": schema}}, name)]), models)
    calls = {"Field", "field", "ConfigDict", "dataclass", "super"}

    for node in ast.walk(ast.parse(text)):
        assert not isinstance(node, ast.Lambda | ast.JoinedStr | ast.ListComp | ast.Await | ast.Starred)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id in calls
        if isinstance(node, ast.Attribute):
            assert node.attr == "model_dump_json"
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert getattr(node, "module", "") in ("__future__", "typing", "dataclasses", "msgspec", "pydantic")
    literals = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert set(choices_in(schema)) <= literals


WRITERS = {
    "typescript": write_typescript,
    "kotlin": lambda given: write_kotlin(given, "shop"),
    "go": lambda given: write_go(given, "shop"),
    "java": lambda given: write_java(given, "shop", "Events"),
}
# Literals and comments, as the languages read them.
TOKENS = {
    "typescript": r'"(?:[^"\\\n\r]|\\.)*"|/\*.*?\*/|//[^\n\r\u2028\u2029]*',
    "kotlin": r'"(?:[^"\\\n\r$]|\\.)*"|/\*(?:(?!/\*).)*?\*/|//[^\n\r]*',
    "go": r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|/\*.*?\*/|//[^\n]*',
    "java": r'"(?:[^"\\\n\r]|\\.)*"|/\*.*?\*/|//[^\n\r]*',
}


@given(HOSTILE_SCHEMAS, HOSTILE_TEXTS, st.sampled_from(sorted(WRITERS)))
def test_no_name_becomes_code_elsewhere(schema, name, language):
    """Outside literals and comments, the output has only words and the punctuation of declarations."""
    text = WRITERS[language](read_declarations([an_event_type({"properties": {"a": schema}}, name)]))
    if language == "java":  # Java's compiler translates these escapes before anything else
        text = re.sub(r"(?<!\\)((?:\\\\)*)\\u+([0-9a-fA-F]{4})", lambda found: found[1] + chr(int(found[2], 16)), text)
    code = re.sub(TOKENS[language], "", text, flags=re.DOTALL)

    assert re.fullmatch(r"[A-Za-z0-9_\s(){}<>\[\].,:;=?|*@&]*", code)
    assert not re.search(r"\bpwned\s*\(", code)


@pytest.mark.parametrize(
    "text",
    ["type: ignore", "+build ignore", "go:generate x", "-*- coding: utf-7 -*-", "@ts-ignore", "noqa", "\\u002a/", "*/",
     '"""', "# fmt: off", "x" * 99 + " type: ignore", "a\nb", "1. x", "- x"],
)  # fmt: skip
def test_no_comment_is_a_directive(text):
    """Tools read instructions in comments, and gofmt reads lists there; no text of a schema begins a comment like
    that.
    """
    for line in comment_lines(text):
        assert not re.match(r"(type:|\+build|go:|-|@|noqa|#|[0-9]+\.)", line)
        assert not re.search(r'\*/|"""|\\\\|\n', line)


def choices_in(schema: dict) -> list[str]:
    """The values of the enumerated types in the schema, without empty ones."""
    if "enum" in schema:
        return [each for each in schema["enum"] if all(schema["enum"])]
    return [each for name, member in schema.get("properties", {}).items() if name for each in choices_in(member)]


def test_hostile_names_survive():
    """Each member keeps its name in JSON, however its identifier is spelled. msgspec supports only names without
    quotes.
    """
    schema = a_hostile_schema()
    declarations = read_declarations([an_event_type(schema)])
    event = {name: each["enum"][0] for name, each in schema["properties"].items() if name and "enum" in each}
    readable = {name: each for name, each in event.items() if not re.search(r'["\\\x00-\x1f]', name)}

    pydantic = python_names(declarations, Models.PYDANTIC)["OrderPlaced"]
    assert round_trip(Models.PYDANTIC, pydantic, event) == event
    msgspec_model = python_names(declarations, Models.MSGSPEC)["OrderPlaced"]
    assert round_trip(Models.MSGSPEC, msgspec_model, event) == readable
    assert python_names(declarations, Models.DATACLASS)["OrderPlaced"]
