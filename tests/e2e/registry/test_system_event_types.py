"""The broker's own event types, as clients see them."""

import json

from tests.support.api import an_authorization, problem
from tests.support.subscriptions import a_request

QUEUE = "nakadi.dead.letter.queue"


def test_dead_letters_can_be_subscribed_to_before_there_is_one(api):
    """The queue of dead letters exists from the start, as an event type like others. (R250, S266)"""
    queue = api.get(f"/event-types/{QUEUE}").json()

    assert (queue["owning_application"], queue["category"]) == ("stups_nakadi", "business")
    assert queue["options"] == {"retention_time": 86_400_000}
    assert (queue["compatibility_mode"], queue["audience"]) == ("forward", "component-internal")
    assert api.post("/subscriptions", json=a_request(QUEUE)).status_code == 201


def test_dead_letters_are_not_for_everyone(ann_client):
    """A subject that is no administrator may neither see, read, write, subscribe to nor change the queue of dead
    letters.
    """
    path = f"/event-types/{QUEUE}"
    beginning = {"X-Nakadi-Cursors": json.dumps([{"partition": "0", "offset": "BEGIN"}])}

    refused = {
        "VIEW": [
            ann_client.get(path),
            ann_client.delete(path),
            ann_client.get(f"{path}/events", headers=beginning),
            ann_client.post("/subscriptions", json=a_request(QUEUE)),
        ],
        "WRITE": [ann_client.post(f"{path}/events", json=[{}])],
    }

    for operation, answers in refused.items():
        details = {problem(each, 403) for each in answers}
        assert details == {f"Access on {operation} event-type:{QUEUE} denied"}


def test_an_administrator_lets_others_read_dead_letters(admin, broker_with_tokens):
    """An administrator may read the broker's own event types, and grant others the right to read them. (S266)"""
    queue = admin.get(f"/event-types/{QUEUE}").json()
    parameters = {"stream_timeout": 1, "batch_flush_timeout": 1}
    assert admin.get(f"/event-types/{QUEUE}/events", params=parameters).status_code == 200
    with broker_with_tokens.client("dlq-viewer") as viewer:
        problem(viewer.get(f"/event-types/{QUEUE}/events"), 403)

        opened = queue | {"authorization": an_authorization("the-admin", "the-admin dlq-viewer", "the-admin")}
        assert admin.put(f"/event-types/{QUEUE}", json=opened).status_code == 200

        answer = viewer.get(f"/event-types/{QUEUE}/events", params=parameters)
        assert answer.status_code == 200
    assert admin.put(f"/event-types/{QUEUE}", json=queue).status_code == 200
