"""PUT /event-types/{name}."""

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
from tests.support.patience import until

STATISTIC = {"messages_per_minute": 1, "message_size": 2, "read_parallelism": 3, "write_parallelism": 4}
PATH = {"type": "path", "name": "owner", "value": "a"}
STATIC = {"type": "static", "name": "owner", "value": "x"}
WITH_A = {"properties": {"a": {"type": "string"}}}


def put(api, definition, **changes):
    return api.put(f"/event-types/{definition['name']}", json=definition | changes)


def read_definition(api, definition):
    return api.get(f"/event-types/{definition['name']}").json()


def test_an_update_answers_with_nothing_but_a_warning(api):
    """An update gets 200, without body and with the data access warning. (R110, R268)"""
    definition = a_definition()
    create_event_type(api, definition)

    answer = put(api, definition, owning_application="other")

    assert answer.status_code == 200
    assert answer.content == b""
    assert answer.headers["warning"] == '299 nakadi "Data access warning"'
    assert read_definition(api, definition)["owning_application"] == "other"


def test_the_body_is_returned_when_a_feature_says_so(api, switch_on):
    """If the feature for returning bodies is on, an update returns the stored event type. (R93)"""
    switch_on("return_body_on_create_update_event_type")
    definition = a_definition()
    create_event_type(api, definition)

    assert put(api, definition, owning_application="other").json() == read_definition(api, definition)


def test_what_was_read_can_be_written_back(api):
    """The whole body of a GET, including read-only fields, is accepted by PUT. (R2, R110)"""
    before = create_event_type(
        api, default_statistic=STATISTIC, authorization=an_authorization(), audience="company-internal"
    )

    assert api.put(f"/event-types/{before['name']}", json=before).status_code == 200
    after = api.get(f"/event-types/{before['name']}").json()
    assert after | {"updated_at": None} == before | {"updated_at": None}


def test_what_is_left_out_falls_back_to_its_default(api):
    """Fields with a default take it when an update leaves them out. (R111)"""
    definition = a_definition(schema=WITH_A)
    create_event_type(api, definition | {"ordering_key_fields": ["a"], "compatibility_mode": "compatible"})

    put(api, definition)

    after = read_definition(api, definition)
    assert after["ordering_key_fields"] == []
    assert after["compatibility_mode"] == "forward"


def test_some_fields_stay_when_they_are_left_out(api):
    """Annotations, labels, retention and statistics stay unchanged when absent or null. (R112)"""
    definition = a_definition()
    kept = {
        "annotations": {"a": "1"},
        "labels": {"b": "2"},
        "options": {"retention_time": 20_000_000},
        "default_statistic": STATISTIC,
    }
    create_event_type(api, definition | kept)

    put(api, definition)
    put(api, definition, annotations=None, labels=None, options=None, default_statistic=None)
    put(api, definition, options={"retention_time": None})

    assert {name: read_definition(api, definition)[name] for name in kept} == kept


def test_empty_annotations_and_labels_clear_them(api):
    """An empty map, unlike a missing one, removes all annotations or labels. (R112)"""
    definition = a_definition()
    create_event_type(api, definition | {"annotations": {"a": "1"}, "labels": {"b": "2"}})

    put(api, definition, annotations={}, labels={})

    assert read_definition(api, definition)["annotations"] == {}
    assert read_definition(api, definition)["labels"] == {}


def test_times_move_with_the_change(api):
    """The time of creation stays, the time of the last change always moves, and the schema's time moves with the
    schema. (R127)"""
    definition = a_definition()
    before = create_event_type(api, definition)

    put(api, definition)
    unchanged = read_definition(api, definition)
    put(api, definition, schema={"type": "json_schema", "schema": "{ }"})
    changed = read_definition(api, definition)

    assert before["created_at"] == unchanged["created_at"] == changed["created_at"]
    assert before["updated_at"] < unchanged["updated_at"] < changed["updated_at"]
    assert before["schema"] == unchanged["schema"]
    assert changed["schema"]["version"] == "1.0.1"
    assert changed["schema"]["created_at"] > before["schema"]["created_at"]


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        ({"name": "other"}, {}, None),
        ({"audience": "company-internal"}, {"audience": None}, "event audience must not be set back to null"),
        ({"audience": "company-internal"}, {"audience": "external-public"}, None),
        ({}, {"audience": "external-public"}, None),
        (
            {"authorization": an_authorization()},
            {"authorization": None},
            "Changing authorization object to `null` is not possible",
        ),
        ({"authorization": an_authorization()}, {"authorization": an_authorization(readers="bob")}, None),
        ({}, {"authorization": an_authorization()}, None),
        ({}, {"authorization": an_authorization(writers="bob bob")}, "duplicated attribute(s): user:bob"),
        ({"default_statistic": STATISTIC}, {"default_statistic": STATISTIC | {"messages_per_minute": 9}}, None),
        (
            {"default_statistic": STATISTIC},
            {"default_statistic": STATISTIC | {"read_parallelism": 4}},
            "default statistics must not be changed",
        ),
        ({}, {"default_statistic": STATISTIC}, "default statistics must not be changed"),
        ({}, {"partition_strategy": "hash", "partition_key_fields": ["a"]}, None),
        (
            {"partition_strategy": "hash", "partition_key_fields": ["a"]},
            {"partition_strategy": "random"},
            "changing partition_strategy is only allowed if the original strategy was 'random'",
        ),
        (
            {"partition_strategy": "hash", "partition_key_fields": ["a"]},
            {"partition_key_fields": ["b"]},
            None,
        ),
        (
            {"partition_strategy": "hash", "partition_key_fields": ["a"]},
            {"partition_key_fields": []},
            "partition_key_fields field should be set for partition strategy 'hash'",
        ),
        ({}, {"partition_strategy": "odd"}, "partition strategy does not exist: odd"),
        ({}, {"options": {"retention_time": 1}}, "can not be less than 10800000"),
        ({}, {"options": {"retention_time": 10_800_000}}, None),
        ({}, {"ordering_key_fields": ["a"], "ordering_instance_ids": ["a"]}, None),
        ({}, {"event_owner_selector": PATH}, None),
        (
            {"event_owner_selector": PATH},
            {"event_owner_selector": None},
            "event_owner_selector can't be set back to null",
        ),
        (
            {"event_owner_selector": PATH},
            {"event_owner_selector": PATH | {"name": "x"}},
            "event_owner_selector must not be changed, original: {",
        ),
        (
            {},
            {"event_owner_selector": {"type": "metadata", "name": "x", "value": "y"}},
            "event_owner_selector specifying value for type 'metadata' is not supported",
        ),
        ({}, {"compatibility_mode": "compatible"}, None),
        ({"compatibility_mode": "compatible"}, {"compatibility_mode": "none"}, None),
        ({}, {"annotations": {"datalake.zalando.org/materialize-events": "perhaps"}}, "materialize-events"),
    ],
)
def test_what_may_change_and_what_may_not(api, before, after, detail):
    """Each field changes freely, only in one direction, or not at all.
    (R62, R74, R78, R100, R112, R116, R118, R119, R120, R124, R126)
    """
    definition = a_definition(schema=WITH_A, **before)
    create_event_type(api, definition)

    answer = put(api, definition, **after)

    if detail is None:
        assert answer.status_code == 200, answer.text
    else:
        assert detail in problem(answer, 422)


@pytest.mark.parametrize(
    ("old", "new", "detail"),
    [
        ("delete", "compact_and_delete", None),
        ("delete", "compact", "Invalid cleanup_policy change: DELETE cannot be changed to COMPACT"),
        ("compact", "delete", "Invalid cleanup_policy change: COMPACT cannot be changed to DELETE"),
        (
            "compact",
            "compact_and_delete",
            "Invalid cleanup_policy change: COMPACT cannot be changed to COMPACT_AND_DELETE",
        ),
        (
            "compact_and_delete",
            "delete",
            "Invalid cleanup_policy change: COMPACT_AND_DELETE cannot be changed to DELETE",
        ),
    ],
)
def test_a_cleanup_policy_changes_one_way(api, old, new, detail):
    """The cleanup policy may change only from delete to delete and compact. (R117)"""
    definition = a_business_definition(cleanup_policy=old)
    create_event_type(api, definition)

    answer = put(api, definition, cleanup_policy=new)

    if detail is None:
        assert answer.status_code == 200
    else:
        assert problem(answer, 422) == detail


def test_an_undefined_event_type_may_become_a_business_one(api):
    """The category may change from undefined to business if enrichment is added in the same change. (R122)"""
    definition = a_definition()
    create_event_type(api, definition)
    business = {"category": "business", "enrichment_strategies": ["metadata_enrichment"]}

    assert put(api, definition, **business).status_code == 200
    assert read_definition(api, definition)["category"] == "business"


@pytest.mark.parametrize(
    "changes",
    [
        {"category": "data", "enrichment_strategies": ["metadata_enrichment"]},
        {
            "category": "business",
            "enrichment_strategies": ["metadata_enrichment"],
            "compatibility_mode": "compatible",
        },
        {"category": "business"},
    ],
)
def test_other_changes_of_category_are_refused(api, changes):
    """Any other change of the category gets 422. (R122)"""
    definition = a_definition()
    create_event_type(api, definition)

    assert problem(put(api, definition, **changes), 422).startswith(
        "Category change is allowed only from 'undefined' to 'business'."
    )


def test_failed_constraints_are_reported_together(api):
    """Several failed constraints are reported together, in a fixed order. (R121, R125)"""
    definition = a_business_definition(partition_strategy="hash", partition_key_fields=["a"])
    create_event_type(api, definition)

    answer = put(api, definition, partition_strategy="random", enrichment_strategies=[])

    assert problem(answer, 422) == (
        "changing partition_strategy is only allowed if the original strategy was 'random'; "
        "changing enrichment_strategies is not allowed"
    )


def test_an_unknown_event_type_cannot_change(api):
    """An update of a missing event type gets 404, after the check of its fields. (R113)"""
    definition = a_definition()

    assert problem(put(api, definition), 404) == f'EventType "{definition["name"]}" does not exist.'
    violations(put(api, definition, category=None))


def test_the_name_in_the_body_is_the_one_in_the_path(api):
    """A body that names another event type gets 422. (R113)"""
    definition = a_definition()
    create_event_type(api, definition)

    answer = api.put(f"/event-types/{definition['name']}", json=definition | {"name": a_name()})

    assert problem(answer, 422) == "path does not match resource name"


ORDER = [
    ({"category": "odd"}, 400, ""),
    ({"labels": {"a": "*"}}, 422, "Should contain only allowed symbols"),
    ({"options": {"retention_time": 1}}, 422, "retention_time"),
    ({"annotations": {"datalake.zalando.org/materialize-events": "perhaps"}}, 422, "materialize-events"),
    ({"event_owner_selector": STATIC | {"value": "y"}}, 422, "must not be changed"),
    ({"authorization": None}, 422, "Changing authorization object"),
    ({"name": "some.thing.else"}, 422, "path does not match"),
    ({"cleanup_policy": "compact"}, 422, "is not available for 'undefined' event type category"),
    ({"schema": {"type": "json_schema", "schema": "x"}}, 422, "schema must be a valid json"),
    ({"audience": None}, 422, "event audience"),
    ({"partition_strategy": "odd"}, 422, "partition strategy does not exist"),
    ({"schema": {"type": "json_schema", "schema": '{"properties": {}}'}}, 422, "schema properties cannot be removed"),
    ({"default_statistic": STATISTIC | {"read_parallelism": 7}}, 422, "default statistics must not be changed"),
]


@pytest.mark.parametrize("step", range(len(ORDER)))
def test_checks_come_in_their_order(api, step):
    """If an update has several mistakes, the answer names the one that is checked first. (R113)"""
    definition = a_definition(
        schema=WITH_A,
        authorization=an_authorization(),
        audience="company-internal",
        event_owner_selector=STATIC,
        default_statistic=STATISTIC,
    )
    create_event_type(api, definition)
    changes = {}
    for each, _, _ in reversed(ORDER[step:]):
        changes |= each
    _, status, detail = ORDER[step]

    answer = api.put(f"/event-types/{definition['name']}", json=definition | changes)

    assert detail in problem(answer, status)


def test_a_read_only_registry_changes_nothing(api, switch_on):
    """While writing is disabled, an update gets 503, even of a missing event type. (R113, R231)"""
    switch_on("disable_db_write_operations")

    assert problem(put(api, a_definition()), 503) == "Database is currently in read-only mode"


def test_an_authorization_section_can_be_made_mandatory(api, switch_on):
    """If the feature that makes authorization mandatory is on, an update without authorization gets 422. (R113)"""
    definition = a_definition()
    create_event_type(api, definition)
    switch_on("force_event_type_authz")

    assert problem(put(api, definition), 422) == "Authorization section is mandatory"


def test_the_old_mode_judges_a_change(api):
    """The current mode judges a change of the schema, so leaving the mode `compatible` and breaking the schema takes
    two updates. (R191, R275)
    """
    definition = a_definition(schema=WITH_A, compatibility_mode="compatible")
    create_event_type(api, definition)
    broken = {"type": "json_schema", "schema": "{}"}

    answer = put(api, definition, compatibility_mode="none", schema=broken)
    assert problem(answer, 422) == "Invalid schema: #/: schema types must be the same"
    assert put(api, definition, compatibility_mode="none").status_code == 200
    assert put(api, definition, compatibility_mode="none", schema=broken).status_code == 200
    assert read_definition(api, definition)["schema"]["version"] == "2.0.0"


def test_a_refused_schema_is_explained(api):
    """Beside the text that clients match, a refusal names the rule and the place, and explains the reason. (R192)"""
    definition = a_definition(schema=WITH_A)
    create_event_type(api, definition)

    answer = put(api, definition, schema={"type": "json_schema", "schema": '{"properties": {}}'})

    assert problem(answer, 422) == "Invalid schema: #/properties/a: schema properties cannot be removed"
    [reason] = answer.json()["reasons"]
    assert reason["rule"] == "PROPERTY_REMOVED"
    assert reason["path"] == "#/properties/a"
    assert "forward" in reason["explanation"]


def test_a_changed_event_type_is_published_to_as_it_is_now(api):
    """A stricter schema applies to the next event. (R105, R177)"""
    definition = a_definition(schema={"properties": {"a": {}}})
    create_event_type(api, definition)
    api.put(
        f"/event-types/{definition['name']}",
        json=definition | {"schema": {"type": "json_schema", "schema": '{"properties": {"a": {"type": "string"}}}'}},
    )
    until(lambda: api.post(f"/event-types/{definition['name']}/events", json=[{"a": 1}]).status_code == 422)
