"""The rules for creating event types, in the order in which they are checked."""

import pytest

from tests.support.api import (
    a_business_definition,
    a_definition,
    an_authorization,
    create_event_type,
    problem,
    violations,
)
from tests.support.builders import a_name


def test_every_violation_gets_its_line(api):
    """All violations are reported at once, each in a line with the path of its field. (R18, R19)"""
    answer = api.post(
        "/event-types",
        json={
            "name": "?",
            "category": "undefined",
            "schema": {"type": "json_schema"},
            "authorization": {"admins": [], "readers": [{"value": "x"}], "writers": None},
            "default_statistic": {"messages_per_minute": -1, "message_size": 0, "read_parallelism": 0},
            "annotations": {"": "x", "My-_key": "y" * 1001},
            "labels": {"a": "*"},
        },
    )

    assert violations(answer) == {
        'Field "name" format not allowed',
        'Field "owning_application" must not be null',
        'Field "schema.schema" must not be null',
        'Field "authorization.admins" must contain at least one attribute',
        'Field "authorization.readers[0].data_type" must not be null',
        'Field "authorization.writers" must not be null',
        'Field "default_statistic.messages_per_minute" can\'t be less then zero',
        'Field "default_statistic.message_size" can\'t be less then 1',
        'Field "default_statistic.read_parallelism" at least one reader expected',
        'Field "default_statistic.write_parallelism" must not be null',
        'Field "annotations[]" Key cannot be empty',
        'Field "annotations[]" Key name should start and end with a letter or a digit',
        'Field "annotations[My-_key]" size must be between 0 and 1000',
        'Field "labels[a]" Should contain only allowed symbols',
    }


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"options": {"retention_time": 10_799_999}}, "can not be less than 10800000"),
        ({"options": {"retention_time": 345_600_001}}, "can not be more than 345600000"),
        (
            {"cleanup_policy": "compact"},
            "cleanup_policy 'compact' and 'compact_and_delete' is not available for 'undefined' event type category",
        ),
        (
            {"enrichment_strategies": ["metadata_enrichment"]},
            "must not define enrichment strategy for undefined event type",
        ),
        (
            {"category": "business", "enrichment_strategies": ["metadata_enrichment"] * 2},
            "enrichment strategies must not contain duplicated entries",
        ),
        ({"category": "data"}, "must define metadata enrichment strategy"),
        ({"partition_strategy": "Random"}, "partition strategy does not exist: Random"),
        ({"partition_strategy": None}, "partition strategy must not be null"),
        (
            {"partition_strategy": "hash"},
            "partition_key_fields field should be set for partition strategy 'hash'",
        ),
        (
            {"partition_strategy": "user_defined"},
            "'user_defined' partition strategy can't be used for EventType of category 'undefined'",
        ),
        (
            {"authorization": an_authorization(admins="ann ann", readers="bob bob bob")},
            (
                "authorization property 'ADMIN' contains duplicated attribute(s): user:ann; "
                "authorization property 'READ' contains duplicated attribute(s): user:bob"
            ),
        ),
        (
            {"event_owner_selector": {"type": "metadata", "name": "x", "value": "y"}},
            "event_owner_selector specifying value for type 'metadata' is not supported",
        ),
        (
            {"event_owner_selector": {"type": "path", "name": "x", "value": "no.where"}},
            "event_owner_selector.value [no.where] absent in schema",
        ),
        ({"ordering_key_fields": ["a", "b"]}, "ordering_key_fields [a, b] absent in schema"),
        (
            {"ordering_instance_ids": ["a"]},
            "`ordering_instance_ids` field can not be defined without defining `ordering_key_fields`",
        ),
    ],
)
def test_a_broken_rule_is_reported(api, changes, detail):
    """Each broken rule of a definition gets 422 with its own message.
    (R61, R71, R74, R75, R78, R82, R84, R98, R99, R100)
    """
    assert problem(api.post("/event-types", json=a_definition(**changes)), 422).endswith(detail)


@pytest.mark.parametrize("retention", [10_800_000, 345_600_000])
def test_retention_bounds_are_allowed(api, retention):
    """The shortest and the longest retention time are within the bounds. (R78)"""
    assert create_event_type(api, options={"retention_time": retention})["options"] == {"retention_time": retention}


@pytest.mark.parametrize("options", [None, {}, {"retention_time": None}])
def test_no_retention_is_the_default(api, options):
    """Missing, empty and null options all mean the default retention. (R79)"""
    assert create_event_type(api, options=options)["options"] == {"retention_time": 172_800_000}


def test_an_owner_in_the_metadata_needs_no_value(api):
    """An event owner selector of type `metadata` without a value can be created, which the reference could
    not. (R74)
    """
    selector = {"type": "metadata", "name": "owner"}

    assert create_event_type(api, event_owner_selector=selector)["event_owner_selector"] == {**selector, "value": None}


def test_key_fields_are_not_looked_up_in_the_schema(api):
    """Partition key fields may have names outside the schema, with any strategy. (R86, R273)"""
    assert create_event_type(api, partition_key_fields=["no.where"])["partition_key_fields"] == ["no.where"]


def test_paths_of_a_data_event_begin_with_data(api):
    """The paths of ordering fields are looked up in the effective schema, where the event type's own schema is below
    `data`. (R81)
    """
    schema = {"properties": {"at": {"type": "integer"}}}
    data = a_business_definition(category="data", schema=schema)

    assert create_event_type(api, data | {"ordering_key_fields": ["data.at", "metadata.occurred_at", "data_type"]})
    assert "absent in schema" in problem(
        api.post("/event-types", json=data | {"name": a_name(), "ordering_key_fields": ["at"]}), 422
    )


def test_a_name_is_taken_once(api):
    """An existing name gets 409, with a message without quotes. (R97)"""
    definition = a_definition()
    create_event_type(api, definition)

    assert problem(api.post("/event-types", json=definition), 409) == f"EventType {definition['name']} already exists."


def test_a_broken_rule_is_reported_before_a_taken_name(api):
    """The check for an existing name comes last: an invalid definition with that name gets 422. (R97)"""
    definition = a_definition()
    create_event_type(api, definition)

    problem(api.post("/event-types", json=definition | {"partition_strategy": "odd"}), 422)


ORDER = [
    ({"category": "odd"}, 400),
    ({"name": "?"}, "format not allowed"),
    ({"options": {"retention_time": 1}}, "retention_time"),
    ({"annotations": {"datalake.zalando.org/materialize-events": "perhaps"}}, "materialize-events"),
    ({"schema": {"type": "json_schema", "schema": "x"}}, "schema must be a valid json"),
    ({"cleanup_policy": "compact"}, "cleanup_policy"),
    ({"enrichment_strategies": ["metadata_enrichment"]}, "enrichment"),
    ({"partition_strategy": "odd"}, "partition strategy"),
    ({"authorization": an_authorization(admins="a a")}, "duplicated attribute"),
    ({"event_owner_selector": {"type": "metadata", "name": "x", "value": "y"}}, "event_owner_selector"),
]


@pytest.mark.parametrize("step", range(len(ORDER)))
def test_checks_come_in_their_order(api, step):
    """If there are several mistakes, the answer names the one that is checked first. (R96)"""
    definition = a_definition()
    for changes, _ in reversed(ORDER[step:]):
        definition |= changes
    expected = ORDER[step][1]

    answer = api.post("/event-types", json=definition)

    if expected == 400:
        problem(answer, 400)
    else:
        assert expected in problem(answer, 422)


def test_creation_can_be_switched_off(api, switch_on):
    """While creation is disabled, every readable request gets 501, valid or not. (R96)"""
    switch_on("disable_event_type_creation")

    assert problem(api.post("/event-types", json={}), 501) == "Event Type creation is disabled"
    problem(api.post("/event-types", json={"category": "odd"}), 400)


def test_a_read_only_registry_takes_nothing(api, switch_on):
    """While writing is disabled, creation gets 503, after the check of the fields and before the rules. (R96, R231)"""
    switch_on("disable_db_write_operations")

    answer = api.post("/event-types", json=a_definition(partition_strategy="odd"))

    assert problem(answer, 503) == "Database is currently in read-only mode"
    assert "retry-after" in answer.headers
    violations(api.post("/event-types", json=a_definition(name=None)))


def test_an_authorization_section_can_be_made_mandatory(api, switch_on):
    """If the feature that makes authorization mandatory is on, a definition without authorization gets 422. (R96)"""
    switch_on("force_event_type_authz")

    assert problem(api.post("/event-types", json=a_definition()), 422) == "Authorization section is mandatory"
    assert create_event_type(api, authorization=an_authorization())["authorization"] == an_authorization()


def test_every_owning_application_is_one(api, switch_on):
    """Even if the feature that checks owning applications is on, any name is accepted. (R101)"""
    switch_on("validate_event_type_owning_application")

    assert create_event_type(api, owning_application="never-heard-of")["owning_application"] == "never-heard-of"
