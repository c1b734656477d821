"""Annotations under the broker's own prefixes that the broker does not know."""

from tests.support.api import create_event_type

MISSPELT = {"nakadi.io/table-sort-bye": "id", "mine.example.org/anything": "goes"}
NEAREST = "The annotation nakadi.io/table-sort-bye means nothing to the broker; the nearest is nakadi.io/table-sort-by"
POLICY = "nakadi.zalando.org/subscription-unprocessable-event-policy"
WRONG_POLICY = "nakadi.zalando.org/subscription-unprocesable-event-policy"


def definition_with(api, event_type, annotations):
    found = api.get(f"/event-types/{event_type['name']}").json()
    return found | {"annotations": annotations}


def test_a_change_of_an_event_type_names_misspelt_annotations(api):
    """The warning header and the event type name the unknown annotation, and the nearest known one. (R282)"""
    event_type = create_event_type(api)
    name = event_type["name"]
    changed = api.put(f"/event-types/{name}", json=definition_with(api, event_type, MISSPELT))
    assert changed.headers["warning"] == f'299 nakadi "Data access warning. {NEAREST}"'
    assert api.get(f"/event-types/{name}").json()["warnings"] == [NEAREST]
    # A definition that was read with its warnings can be sent back; once the mistake is corrected, there are no
    # warnings.
    again = api.put(f"/event-types/{name}", json=definition_with(api, event_type, {"nakadi.io/table-sort-by": "id"}))
    assert again.headers["warning"] == '299 nakadi "Data access warning"'
    assert "warnings" not in api.get(f"/event-types/{name}").json()


def test_a_subscription_names_misspelt_annotations(api):
    """The answers to POST and PUT of a subscription, and the subscription itself, name unknown annotations. (S322)"""
    name = create_event_type(api)["name"]
    body = {"owning_application": "misspelt", "event_types": [name], "annotations": {WRONG_POLICY: "SKIP_EVENT"}}
    made = api.post("/subscriptions", json=body)
    warning = f"The annotation {WRONG_POLICY} means nothing to the broker; the nearest is {POLICY}"
    assert made.status_code == 201
    assert made.headers["warning"] == f'299 nakadi "{warning}"'
    assert made.json()["warnings"] == [warning]
    path = f"/subscriptions/{made.json()['id']}"
    assert api.put(path, json=body).headers["warning"] == f'299 nakadi "{warning}"'
    assert "warning" not in api.put(path, json=body | {"annotations": {}}).headers
    assert "warnings" not in api.get(path).json()
