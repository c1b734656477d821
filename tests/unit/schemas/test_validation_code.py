"""Schemas compiled to code."""

import pytest

from nakadi.schemas.document import SchemaDocument
from nakadi.schemas.keywords import CodeConstants
from nakadi.schemas.validation import NAMES_IN_GENERATED_CODE, _CodeGenerator, compile_validation_function
from nakadi.schemas.values import StepsExhausted


def functions(schema) -> list[str]:
    document = SchemaDocument.from_root(schema)
    generator = _CodeGenerator(document, CodeConstants(NAMES_IN_GENERATED_CODE))
    generator.queue_function_once(document.root)
    return "\n".join(generator.generate_sources()).replace("def ", "\0def ").split("\0")[1:]


def test_one_function_for_each_schema_with_others_inside():
    """A schema that does not look inside a value is part of the function of another schema. (P56)"""
    schema = {"properties": {"a": {"type": "string"}, "b": {"items": {"type": "integer", "minimum": 0}}}}

    assert len(functions(schema)) == 2


def test_one_function_for_each_target_of_references():
    """A schema with many references becomes code once. (P56)"""
    definitions = {"a": {"properties": {"b": {"type": "string"}}}}
    schema = {"properties": {str(each): {"$ref": "#/definitions/a"} for each in range(50)}, "definitions": definitions}

    assert len(functions(schema)) == 2


def test_a_reference_target_that_is_also_used_in_place_is_compiled_once():
    """The target of a reference becomes code once, even if it is also used where it is defined. (P56)"""
    inner = {"properties": {"c": {"type": "string"}}}
    schema = {"properties": {"a": {"properties": {"b": inner}}, "d": {"$ref": "#/properties/a/properties/b"}}}

    assert len(functions(schema)) == 3


def test_simple_targets():
    """A reference to a simple schema is compiled like the schema itself. (P56)"""
    schema = {
        "properties": {"a": {"$ref": "#/definitions/a"}, "b": {"$ref": "#/definitions/a"}},
        "definitions": {"a": {"type": "string", "enum": ["x", "y"]}},
    }

    assert len(functions(schema)) == 1
    assert functions(schema)[0].count("type(member) is str and (member in ") == 2


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "properties": {"a": {}}, "items": {}, "minItems": 1},
        {"enum": ["a", "b"], "additionalProperties": False},
        {"type": ["integer", "null"], "required": ["a"], "uniqueItems": True},
        {"propertyNames": {}, "contains": {}, "if": {}},
    ],
)
def test_code_leaves_out_rules_that_cannot_matter(schema):
    """Keywords about values that the schema excludes, or of a later draft, produce no code. (P56)"""
    assert len(functions({"properties": {"a": schema}})) == 1


def test_steps_of_loops():
    """Each pass of a loop takes as many steps as it makes checks. (P56)"""
    accepts, _ = compile_validation_function(SchemaDocument.from_root({"items": {"type": "integer", "minimum": 0}}))

    assert accepts([1] * 100, [1_000])
    with pytest.raises(StepsExhausted):
        accepts([1] * 100, [200])


def test_steps_of_references():
    """Each use of a schema through a reference takes steps. (P56)"""
    accepts, _ = compile_validation_function(SchemaDocument.from_root({"properties": {"a": {"$ref": "#"}}}))
    event: dict = {}
    for _ in range(100):
        event = {"a": event}

    assert accepts(event, [1_000])
    with pytest.raises(StepsExhausted):
        accepts(event, [150])
