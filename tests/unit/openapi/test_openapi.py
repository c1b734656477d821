"""The description of the API: well-formed, true, complete, and suitable for the gateway that is generated from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from openapi_spec_validator import validate as validate_document

from nakadi import openapi
from nakadi.app.authentication import PUBLIC_PATH_PATTERN, ScopeTable
from nakadi.app.settings import Settings
from nakadi.http.docs_page import required_scopes
from nakadi.model.authorization import BlockedKind, Feature
from nakadi.model.event_type import (
    Audience,
    Category,
    CleanupPolicy,
    CompatibilityMode,
    EnrichmentStrategy,
    EventTypeDraft,
    OwnerSelectorType,
    PartitionStrategy,
    SchemaType,
    StorageType,
)
from nakadi.openapi.examples import examples_of_media_type
from nakadi_cli import __version__
from tests.support.environment import plain_environment
from tests.support.openapi import validate

ROOT = Path(__file__).parents[3]

SCHEMAS = openapi.document()["components"]["schemas"]
OPERATIONS = list(openapi.operations().values())

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)


def nodes(node: Any, place: str = "#") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object of the description, with its location; examples contain none."""
    if isinstance(node, dict):
        yield place, node
        for name, value in node.items():
            if name not in ("example", "examples"):
                yield from nodes(value, f"{place}/{name}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from nodes(value, f"{place}/{index}")


def given_examples() -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    """The location, the schema and the value of every example."""
    for place, node in nodes(openapi.document()):
        schema = node.get("schema", node)
        if place.endswith("/properties"):
            continue
        if "example" in node:
            yield place, schema, node["example"]
        for name, each in node.get("examples", {}).items():
            yield f"{place}/{name}", schema, each["value"]


EXAMPLES = list(given_examples())


def media_types() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for operation in OPERATIONS:
        yield from operation.description.get("requestBody", {}).get("content", {}).items()
        for response in operation.responses.values():
            yield from response.get("content", {}).items()


# Well-formed


def test_document_is_valid_openapi() -> None:
    """The files together are an OpenAPI 3.0 document."""
    validate_document(openapi.document())
    assert openapi.document()["openapi"] == "3.0.1"


def test_document_is_plain_json() -> None:
    """Nothing in the files has a meaning in YAML that it does not have in JSON, such as a time or the word `on`."""
    assert json.loads(openapi.document_json()) == openapi.document()


def test_files_read_the_same_without_the_loader_in_c() -> None:
    """PyYAML has two parsers, and can be installed without the one in C: both read every file in the same way."""
    for file in sorted(Path(openapi.__file__).parent.glob("*.yaml")):
        text = file.read_bytes()
        loaders = {yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)}
        first, *others = [yaml.load(text, loader) for loader in loaders]
        assert all(first == other for other in others), file.name


def test_version_is_that_of_the_package() -> None:
    """The description has the version of the package."""
    assert openapi.document()["info"]["version"] == __version__


def test_reading_waits_until_someone_asks() -> None:
    """Importing the routes of the description reads no YAML, and does not even import the YAML reader."""
    code = "import sys, nakadi.http.routes.monitoring; sys.exit('yaml' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            env=plain_environment(PYTHONPATH=str(ROOT / "layers" / "nakadi" / "python")),
        ).returncode
        == 0
    )


def test_files_may_not_contradict_each_other() -> None:
    """If two files describe the same name differently, the error contains that name."""
    whole = {"paths": {"/a": {"get": {"summary": "one"}}}}
    openapi._merge_into(whole, {"paths": {"/a": {"put": {}, "get": {"summary": "one"}}}})
    assert whole == {"paths": {"/a": {"get": {"summary": "one"}, "put": {}}}}
    with pytest.raises(ValueError, match="/paths//a/get/summary"):
        openapi._merge_into(whole, {"paths": {"/a": {"get": {"summary": "another"}}}})


# The description is true


@pytest.mark.parametrize(("schema", "value"), [each[1:] for each in EXAMPLES], ids=[each[0] for each in EXAMPLES])
def test_example_is_true(schema: Mapping[str, Any], value: Any) -> None:
    """An example matches its schema."""
    validate(schema, value, "the example")


def test_numbers_tell_how_many_bits_they_have() -> None:
    """Every integer in the description states its number of bits, because generated clients have integer types of 32 or
    64 bits.
    """
    numbers = {place: node for place, node in nodes(openapi.document()) if node.get("type") == "integer"}
    assert numbers
    assert {place for place, node in numbers.items() if node.get("format") not in ("int32", "int64")} == set()


def test_examples_of_streams_are_true() -> None:
    """Every line of an example of a stream is a batch as described."""
    streams = [content for _, content in media_types() if "x-item-schema" in content]
    assert len(streams) == 3
    for content in streams:
        for line in content["example"].splitlines():
            validate(content["x-item-schema"], json.loads(line), "the line")


def test_examples_made_from_schemas_are_true() -> None:
    """If a body has no example, the one that is assembled for the page matches the schema."""
    for _, content in media_types():
        for heading, value in examples_of_media_type(content):
            validate(content["schema"], value, heading)


def test_published_examples_fit_their_categories() -> None:
    """The examples of publishing are a business event and a data change event, which match their descriptions."""
    body = openapi.operations()["publish_events"].description["requestBody"]["content"]["application/json"]
    for name, schema in (("business", "BusinessEvent"), ("data", "DataChangeEvent")):
        for event in body["examples"][name]["value"]:
            validate(SCHEMAS[schema], event, name)


@pytest.mark.parametrize(
    ("schema", "member", "words"),
    [
        ("Category", None, Category),
        ("CompatibilityMode", None, CompatibilityMode),
        ("EventTypeDraft", "cleanup_policy", CleanupPolicy),
        ("EventType", "cleanup_policy", CleanupPolicy),
        ("EventTypeDraft", "partition_strategy", PartitionStrategy),
        ("EventType", "partition_strategy", PartitionStrategy),
        ("EventTypeDraft", "audience", Audience),
        ("EventType", "audience", Audience),
        ("EventOwnerSelector", "type", OwnerSelectorType),
        ("SchemaDraft", "type", SchemaType),
        ("StorageDraft", "storage_type", StorageType),
        ("Storage", "storage_type", StorageType),
        ("FeatureName", None, Feature),
    ],
)
def test_words_are_those_of_the_model(schema: str, member: str | None, words: type[StrEnum]) -> None:
    """If the description lists the words that a member may have, they are all the words that the broker knows."""
    described = SCHEMAS[schema] if member is None else SCHEMAS[schema]["properties"][member]
    assert sorted(described["enum"]) == sorted(words)


def test_words_elsewhere_are_those_of_the_model() -> None:
    """The description also lists all blocked kinds and enrichment strategies."""
    kind, *_ = (each for each in openapi.operations()["block"].parameters if each["name"] == "blacklist_type")
    assert kind["schema"]["enum"] == list(BlockedKind)
    for schema in ("EventTypeDraft", "EventType"):
        strategies = SCHEMAS[schema]["properties"]["enrichment_strategies"]["items"]["enum"]
        assert strategies == list(EnrichmentStrategy)


@pytest.mark.parametrize(
    "field", [name for name, each in SCHEMAS["EventTypeDraft"]["properties"].items() if "default" in each]
)
def test_defaults_are_those_of_the_model(field: str) -> None:
    """A field that is left out has the default that the description states."""
    value = getattr(EventTypeDraft(), field)
    assert SCHEMAS["EventTypeDraft"]["properties"][field]["default"] == (list(value) if value == () else value)


def test_figures_in_the_text_are_those_of_the_settings() -> None:
    """Limits that can be configured are described with their defaults."""
    settings = Settings()
    text = openapi.document_json().decode()
    retention = SCHEMAS["EventTypeOptions"]["properties"]["retention_time"]["description"]
    hours = [
        ms // 3_600_000 for ms in (settings.retention_min_ms, settings.retention_max_ms, settings.retention_default_ms)
    ]
    assert hours == [3, 4 * 24, 2 * 24]
    assert "from 3 hours to 4 days, by default 2 days" in " ".join(retention.split())
    assert f"at most {settings.max_event_bytes} bytes" in text
    assert text.count(f"maximum ({settings.max_partitions} by default)") == 2


@each_operation
def test_scopes_are_those_that_are_asked_for(operation: openapi.ApiOperation) -> None:
    """An operation names the scope that its route requires, or none if it is public. (R42, R46)"""
    table = ScopeTable(Settings())
    path = re.sub(r"\{.*?\}", "x", operation.path)
    asked = [] if PUBLIC_PATH_PATTERN.fullmatch(path) else [*table.needed_scopes(operation.method, path)]
    assert required_scopes(operation) == asked


@pytest.mark.parametrize(
    ("operation", "status"),
    [
        ("add_schema", 200),
        ("delete_event_type", 200),
        ("set_partition_count", 204),
        ("set_partition_count", 422),
        ("delete_storage", 403),
        ("create_event_type", 501),
        ("set_feature", 400),
        ("publish_events", 207),
        ("stream_events", 412),
    ],
)
def test_statuses_that_older_descriptions_got_wrong(operation: str, status: int) -> None:
    """Where older descriptions differed from the answers, this one describes the answers. (R264, R265, R266)"""
    assert str(status) in openapi.operations()[operation].responses


# The description is complete


@each_operation
def test_operation_can_be_understood(operation: openapi.ApiOperation) -> None:
    """An operation has a name in snake_case, one group, a summary without a full stop, and parameters with
    descriptions."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", operation.id)
    assert operation.description["tags"][0] in [tag["name"] for tag in openapi.document()["tags"]]
    assert not operation.description["summary"].endswith(".")
    assert all(each["description"] for each in operation.parameters)


@each_operation
def test_operation_has_all_its_path_parameters(operation: openapi.ApiOperation) -> None:
    """All parameters in the path are described, and have examples for the command line."""
    in_path = [each for each in operation.parameters if each["in"] == "path"]
    assert {each["name"] for each in in_path} == set(re.findall(r"\{(.*?)\}", operation.path))
    assert all(each["required"] and each["example"] for each in in_path)


@each_operation
def test_operation_reports_what_every_request_may_meet(operation: openapi.ApiOperation) -> None:
    """The answers of an operation include any answer that a request of its kind may get."""
    expected = {"400", "500"}
    if required_scopes(operation):
        expected |= {"401", "403", "503"}
    if operation.method != "POST":
        expected |= {"406"}  # because of the Content-Encoding
    if operation.method in ("POST", "PUT"):
        expected |= {"408", "413"}
    assert expected <= set(operation.responses)
    assert any(status.startswith("2") for status in operation.responses)


def test_operation_ids_are_unique() -> None:
    """No two operations share a name."""
    described = [
        item[method]
        for item in openapi.document()["paths"].values()
        for method in openapi.HTTP_METHODS
        if method in item
    ]
    assert len(described) == len(OPERATIONS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_explained_and_used(name: str) -> None:
    """Every schema and every member of it has a description, and is referred to."""
    schema = SCHEMAS[name]
    assert schema["description"]
    for member, each in schema.get("properties", {}).items():
        assert "$ref" in each or each["description"], member
    without = {**openapi.document(), "components": {"schemas": {key: SCHEMAS[key] for key in SCHEMAS if key != name}}}
    assert re.search(rf"\b{name}\b", json.dumps(without) + json.dumps(openapi.document()["components"]["responses"]))


def test_shared_parts_are_used() -> None:
    """Every shared parameter and answer is used."""
    text = openapi.document_json().decode()
    for kind in ("parameters", "responses"):
        for name in openapi.document()["components"][kind]:
            assert f'"#/components/{kind}/{name}"' in text


# The description suits the gateway


def test_no_words_that_the_gateway_chokes_on() -> None:
    """Schemas have no alternatives, and their names consist of letters, so that a gateway can import them."""
    for place, node in nodes(openapi.document()):
        if "/properties" not in place[-len("/properties") :]:
            assert not {"oneOf", "anyOf", "not", "discriminator"} & set(node), place
    assert all(
        name.isalpha() for kind in openapi.document()["components"].values() for name in kind if name != "oauth2"
    )
    assert all(re.fullmatch(r"(/([a-zA-Z0-9._-]+|\{[a-z_]+\}))+", path) for path in openapi.document()["paths"])


def test_gateway_is_shown_operations_and_no_schemas() -> None:
    """The gateway's input is valid, has every operation, and contains nothing from which it would make models."""
    shown = openapi.gateway_document()
    validate_document(shown)
    found = {
        (method, path, each["operationId"]) for path, item in shown["paths"].items() for method, each in item.items()
    }
    assert found == {(each.method.lower(), each.path, each.id) for each in OPERATIONS}
    assert "$ref" not in json.dumps(shown)
    assert "example" not in json.dumps(shown)
