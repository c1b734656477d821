"""`nakadi timelines`, `storages`, `features`, `admin` and `doctor`."""

import json
import time
import uuid
from contextlib import closing

import httpx
import pytest

from nakadi.local import Broker
from nakadi_cli.api import Api, Connection
from nakadi_cli.doctor import check_subscriptions
from tests.support.api import create_event_type
from tests.support.parking import PARKING
from tests.support.patience import PATIENCE
from tests.support.subscriptions import publish
from tests.support.tokens import Issuer


@pytest.fixture
def own_broker():
    """A broker whose settings the test may change, because no other test uses it."""
    with Broker() as broker:
        yield broker


def test_a_new_timeline_begins(run, api):
    """`timelines create` begins a timeline, and `list` shows all timelines of the event type in their order."""
    name = create_event_type(api)["name"]

    assert run("timelines", "create", name).code == 0
    assert [each["order"] for each in run("timelines", "list", name, "-o", "json").json] == [1, 2]
    assert run("timelines", "create", name, "--storage", "none").code == 3


def test_topics_of_another_broker_are_adopted(run, api):
    """`timelines adopt` sends the timelines in a file, and shows why the broker refuses them."""
    name = create_event_type(api)["name"]
    adopt = ("timelines", "adopt", name, "--storage", "default", "-f", "-")

    refused = run(*adopt, stdin=json.dumps([{"order": 1, "topic": "elsewhere"}]))
    assert refused.code == 3
    assert "(422, flow id " in refused.err
    assert run(*adopt, stdin="{}").code == 2


def test_storages_are_created_chosen_and_deleted(run, own_broker):
    """A file describes a storage, which can become the default for new event types, and can be deleted when no event
    type uses it.
    """
    identity = uuid.uuid4().hex
    definition = {"id": identity, "storage_type": "embedded", "embedded_configuration": {}}

    assert run("storages", "create", "-f", "-", stdin=json.dumps(definition), url=own_broker.url).code == 0
    assert run("storages", "get", identity, "-o", "json", url=own_broker.url).json["id"] == identity
    assert run("storages", "use", identity, url=own_broker.url).code == 0
    assert {
        each["id"] for each in run("storages", "list", "-o", "json", url=own_broker.url).json if each["default"]
    } == {identity}
    assert run("storages", "use", "default", url=own_broker.url).code == 0
    assert run("storages", "delete", identity, url=own_broker.url).code == 0
    assert run("storages", "get", identity, url=own_broker.url).code == 5


def test_features_are_switched(run, own_broker):
    """`on` and `off` switch a feature, and `list` shows all features."""
    feature = "disable_event_type_creation"

    assert run("features", "on", feature, url=own_broker.url).code == 0
    assert any(line.split() == [feature, "on"] for line in run("features", "list", url=own_broker.url).out.splitlines())
    assert run("features", "off", feature, url=own_broker.url).code == 0
    assert {"feature": feature, "enabled": False} in run("features", "list", "-o", "json", url=own_broker.url).json
    assert run("features", "on", "no_such_feature", url=own_broker.url).code == 3


def test_admins_are_added_and_removed(run, own_broker):
    """`admin add` and `remove` change one entry of one list, and leave all other entries unchanged."""

    def list_admins():
        return run("admin", "list", "-o", "json", url=own_broker.url).json

    before = list_admins()
    assert run("admin", "add", "writers", "service:shop", url=own_broker.url).code == 0
    between = list_admins()
    assert run("admin", "add", "writers", "service:shop", url=own_broker.url).code == 0
    assert list_admins() == between
    assert run("admin", "remove", "writers", "service:shop", url=own_broker.url).code == 0

    new = {"role": "writers", "data_type": "service", "value": "shop"}
    assert new in between
    assert len(between) == len(before) + 1
    assert list_admins() == before
    assert run("admin", "remove", "writers", "service:shop", url=own_broker.url).code == 2
    assert run("admin", "add", "writers", "shop", url=own_broker.url).code == 2


def test_applications_are_blocked_and_unblocked(run, own_broker):
    """`admin block` keeps an application from publishing until `unblock`."""
    assert run("admin", "block", "PRODUCER_APP", "checkout", url=own_broker.url).code == 0
    assert run("admin", "blocked", "-o", "json", url=own_broker.url).json == [
        {"kind": "PRODUCER_APP", "name": "checkout"}
    ]
    assert run("admin", "unblock", "PRODUCER_APP", "checkout", url=own_broker.url).code == 0
    assert run("admin", "blocked", "-o", "json", url=own_broker.url).json == []


def found_by_doctor(done):
    return {each["what"]: each for each in done.json}


def test_a_broker_that_is_well_is_found_well(run, own_broker):
    """If nothing is wrong with a broker, `doctor` exits with code 0 after all its checks."""
    done = run("doctor", url=own_broker.url)

    assert done.code == 0, done.out
    assert [line.split()[0] for line in done.out.splitlines()] == ["well"] * 12


def test_what_hinders_work_is_noticed(run, own_broker):
    """`doctor` lists features that restrict work, blocks and parked events, and does not count them as failures."""
    run("features", "on", "disable_event_type_creation", url=own_broker.url)
    run("admin", "block", "CONSUMER_ET", "order.placed", url=own_broker.url)

    done = run("doctor", "-o", "json", url=own_broker.url)
    found = found_by_doctor(done)

    assert done.code == 0
    assert "no event types can be created" in found["features"]["why"]
    assert "order.placed" in found["blocks"]["why"]
    assert {found[what]["state"] for what in ("features", "blocks")} == {"notice"}


@pytest.mark.parametrize("begins_at", ["begin", "end"])
def test_a_subscription_without_a_consumer_is_found(run, own_broker, begins_at):
    """`doctor` names a subscription that nobody read for an hour, if there are events for it."""
    with httpx.Client(base_url=own_broker.url, timeout=PATIENCE) as api:
        name = create_event_type(api)["name"]
    done = run("subscriptions", "create", name, "--owner", "shipping", "--from", begins_at, url=own_broker.url)
    with closing(Api(Connection(own_broker.url, lambda: None))) as api:
        assert check_subscriptions(api, lambda: time.time() + 3601).state == "well"

        api.post(f"/event-types/{name}/events", [{"n": 1}])

        assert check_subscriptions(api).state == "well"
        found = check_subscriptions(api, lambda: time.time() + 3601)
        assert found.state == "notice"
        assert found.why.endswith(f"never read since their creation an hour ago or longer: {done.out.strip()}")


def test_a_consumer_that_fails_at_an_event_is_found(run, own_broker):
    """`doctor` reports a subscription as ill if its consumer failed at the same event in three streams, even if no
    stream is open.
    """
    with httpx.Client(base_url=own_broker.url, timeout=PATIENCE) as api:
        name = create_event_type(api)["name"]
        publish(api, name)
    done = run("subscriptions", "create", name, "--owner", "shipping", "--from", "begin", url=own_broker.url)
    identity = done.out.strip()
    found = []
    for _ in range(3):
        found.append(found_by_doctor(run("doctor", "-o", "json", url=own_broker.url))["subscriptions"]["state"])
        assert run("consume", identity, "--exec", "false", url=own_broker.url).code == 1

    doctor = run("doctor", "-o", "json", url=own_broker.url)
    assert "ill" not in found
    assert doctor.code == 1
    assert f"nakadi subscriptions lag {identity}" in found_by_doctor(doctor)["subscriptions"]["why"]
    assert "stalled" in run("subscriptions", "lag", identity, url=own_broker.url).out


def test_a_broker_that_is_not_there_is_found_ill(run):
    """If no broker answers, or another program does, `doctor` prints the reason, and exits with code 1."""
    done = run("doctor", url="http://127.0.0.1:9")

    assert done.code == 1
    assert done.out.startswith("ill")
    assert "cannot be reached" in done.out


def test_a_bad_token_is_found(run, tmp_path):
    """If the broker does not know the caller, `doctor` reports the token as ill."""
    with Broker(**Issuer(tmp_path).settings) as guarded:
        done = run("doctor", "-o", "json", url=guarded.url)

    assert done.code == 1
    assert found_by_doctor(done)["token"]["state"] == "ill"
    assert found_by_doctor(done)["ready"]["state"] == "well"


def test_the_lots_of_subscriptions_are_looked_at(run, api, broker):
    """`doctor` checks subscriptions that park events, whether or not they have parked events."""
    name = create_event_type(api)["name"]
    body = {"owning_application": "cli", "event_types": [name], "annotations": PARKING}
    assert api.post("/subscriptions", json=body).status_code == 201

    found = found_by_doctor(run("doctor", "-o", "json", url=broker.url))

    assert found["subscriptions"]["why"].startswith("checked ")


def test_misspelt_annotations_are_noticed(run, own_broker):
    """`doctor` names annotations with the broker's prefixes that the broker does not know, and still succeeds."""
    with httpx.Client(base_url=own_broker.url, timeout=PATIENCE) as api:
        create_event_type(api, annotations={"nakadi.io/table-sort-bye": "id"})
    done = run("doctor", "-o", "json", url=own_broker.url)

    assert done.code == 0
    assert found_by_doctor(done)["annotations"]["state"] == "notice"
    assert "nakadi.io/table-sort-by" in found_by_doctor(done)["annotations"]["why"]
