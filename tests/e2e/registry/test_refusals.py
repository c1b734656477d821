"""The refusals of every endpoint: without a token, without the scope, without the permission."""

from __future__ import annotations

import json
from contextlib import closing

import httpx
import pytest

from nakadi.app.broker import open_broker
from nakadi.app.routes import make_application
from nakadi.app.settings import Settings
from tests.support.api import a_definition, an_authorization, attributes, create_event_type, problem
from tests.support.http import make_client
from tests.support.tokens import EVERY_SCOPE, Issuer

CONFIG_WRITE = "nakadi.config.write"
TYPE_WRITE = "nakadi.event_type.write"
READ = "nakadi.event_stream.read"
WRITE = "nakadi.event_stream.write"
UID = "uid"

PUBLIC = {("GET", "/health"), ("GET", "/ready"), ("GET", "/openapi.json"), ("GET", "/docs")}

# Every route with the scope that it asks for.
SCOPES = {
    ("GET", "/event-types"): UID,
    ("POST", "/event-types"): TYPE_WRITE,
    ("GET", "/event-types/{name}"): UID,
    ("PUT", "/event-types/{name}"): TYPE_WRITE,
    ("DELETE", "/event-types/{name}"): CONFIG_WRITE,
    ("PUT", "/event-types/{name}/partition-count"): TYPE_WRITE,
    ("GET", "/event-types/{name}/schemas"): UID,
    ("POST", "/event-types/{name}/schemas"): TYPE_WRITE,
    ("GET", "/event-types/{name}/schemas/{version}"): UID,
    ("POST", "/event-types/{name}/schemas/{version}/compatibility-check"): TYPE_WRITE,
    ("GET", "/event-types/{name}/schemas/rehearsals"): f"{TYPE_WRITE} {READ}",
    ("POST", "/event-types/{name}/schemas/rehearsals"): f"{TYPE_WRITE} {READ}",
    ("GET", "/event-types/{name}/schemas/rehearsals/{rehearsal_id}"): f"{TYPE_WRITE} {READ}",
    ("DELETE", "/event-types/{name}/schemas/rehearsals/{rehearsal_id}"): f"{TYPE_WRITE} {READ}",
    ("GET", "/event-types/{name}/timelines"): UID,
    ("POST", "/event-types/{name}/timelines"): TYPE_WRITE,
    ("POST", "/event-types/{name}/events"): WRITE,
    ("POST", "/event-types/{name}/deleted-events"): TYPE_WRITE,
    ("GET", "/event-types/{name}/events"): READ,
    ("GET", "/event-types/{name}/readers"): UID,
    ("GET", "/event-types/{name}/table-runs"): UID,
    ("GET", "/event-types/{name}/partitions"): READ,
    ("GET", "/event-types/{name}/partitions/{partition}"): READ,
    ("POST", "/event-types/{name}/cursor-distances"): READ,
    ("POST", "/event-types/{name}/cursors-lag"): READ,
    ("POST", "/event-types/{name}/shifted-cursors"): READ,
    ("POST", "/queries"): f"{UID} {READ}",
    ("GET", "/subscriptions"): READ,
    ("POST", "/subscriptions"): READ,
    ("GET", "/subscriptions/{subscription_id}"): READ,
    ("PUT", "/subscriptions/{subscription_id}"): UID,
    ("DELETE", "/subscriptions/{subscription_id}"): READ,
    ("GET", "/subscriptions/{subscription_id}/cursors"): READ,
    ("POST", "/subscriptions/{subscription_id}/cursors"): READ,
    ("PATCH", "/subscriptions/{subscription_id}/cursors"): UID,
    ("GET", "/subscriptions/{subscription_id}/stats"): READ,
    ("GET", "/subscriptions/{subscription_id}/parked-events"): READ,
    ("POST", "/subscriptions/{subscription_id}/parked-events/redrive"): READ,
    ("GET", "/subscriptions/{subscription_id}/parked-events/{parked_event_id}"): READ,
    ("DELETE", "/subscriptions/{subscription_id}/parked-events/{parked_event_id}"): READ,
    ("POST", "/subscriptions/{subscription_id}/parked-events/{parked_event_id}/redrive"): READ,
    ("GET", "/subscriptions/{subscription_id}/objective"): READ,
    ("PUT", "/subscriptions/{subscription_id}/objective"): UID,
    ("DELETE", "/subscriptions/{subscription_id}/objective"): READ,
    ("GET", "/subscriptions/{subscription_id}/sink"): READ,
    ("PUT", "/subscriptions/{subscription_id}/sink"): UID,
    ("DELETE", "/subscriptions/{subscription_id}/sink"): READ,
    ("POST", "/subscriptions/{subscription_id}/sink/test"): READ,
    ("POST", "/subscriptions/{subscription_id}/sink/pause"): READ,
    ("POST", "/subscriptions/{subscription_id}/sink/resume"): READ,
    ("POST", "/subscriptions/{subscription_id}/sink/secret/rotate"): READ,
    ("GET", "/subscriptions/{subscription_id}/events"): READ,
    ("POST", "/subscriptions/{subscription_id}/events"): READ,
    ("DELETE", "/subscriptions/{subscription_id}/streams/{stream_id}"): READ,
    ("POST", "/subscriptions/{subscription_id}/streams/{stream_id}/extend"): READ,
    ("GET", "/registry/partition-strategies"): UID,
    ("GET", "/registry/enrichment-strategies"): UID,
    ("GET", "/registry/validation-strategies"): UID,
    ("GET", "/settings/admins"): UID,
    ("POST", "/settings/admins"): UID,
    ("GET", "/settings/blacklist"): UID,
    ("PUT", "/settings/blacklist/{blacklist_type}/{name}"): UID,
    ("DELETE", "/settings/blacklist/{blacklist_type}/{name}"): UID,
    ("GET", "/settings/features"): UID,
    ("POST", "/settings/features"): UID,
    ("GET", "/storages"): UID,
    ("POST", "/storages"): UID,
    ("GET", "/storages/{id}"): UID,
    ("DELETE", "/storages/{id}"): UID,
    ("PUT", "/storages/default/{id}"): UID,
    ("GET", "/metrics"): UID,
    ("GET", "/request-metrics"): UID,
    ("GET", "/stream-metrics"): UID,
    ("GET", "/version"): UID,
    ("GET", "/avro-schemas/{schema_name}/versions"): UID,
    ("GET", "/avro-schemas/{schema_name}/versions/{version}"): UID,
}

GUARDED = [pytest.param(*route, scope, id=" ".join(route)) for route, scope in SCOPES.items()]


def send_request(client: httpx.Client, method: str, template: str, **options: object) -> httpx.Response:
    values = {
        "name": "some.name",
        "version": "1.0.0",
        "partition": "0",
        "id": "some-id",
        "blacklist_type": "PRODUCER_ET",
        "subscription_id": "some-id",
        "parked_event_id": "some-id",
        "stream_id": "some-id",
        "schema_name": "batch.publishing",
        "rehearsal_id": "some-id",
    }
    path = template.format(**values)
    with client.stream(method, path, **options) as answer:
        if answer.headers["content-type"].startswith("application/x-json-stream"):
            return answer
        answer.read()
        return answer


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer):
    """A broker that requires tokens, without a socket."""
    broker = open_broker(Settings(**issuer.settings))
    yield broker
    broker.close()


def client_of(broker, issuer, subject="ann", **claims):
    return make_client(make_application(broker), **issuer.bearer(subject, **claims))


def test_no_route_is_forgotten(broker):
    """The table of scopes has every route. (R46)"""
    assert {(route.method, route.template) for route in make_application(broker).router.routes} == {*SCOPES, *PUBLIC}


@pytest.mark.parametrize(("method", "template", "scope"), GUARDED)
def test_nothing_is_reported_without_a_token(broker, method, template, scope):
    """Without a token, every operation gets 401, in plain JSON with its own type. (R23, R43, P13)"""
    answer = send_request(make_client(make_application(broker)), method, template)

    assert scope
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert json.dumps(answer.json()) == json.dumps(
        {
            "type": "https://httpstatus.es/401",
            "title": "Unauthorized",
            "status": 401,
            "detail": "Full authentication is required to access this resource",
        }
    )


@pytest.mark.parametrize(("method", "template", "scope"), GUARDED)
def test_nothing_is_reported_for_a_bad_token(broker, method, template, scope):
    """An invalid token also gets 401, with another detail. (R43, P13)"""
    answer = send_request(make_client(make_application(broker), Authorization="Bearer nonsense"), method, template)

    assert scope
    assert answer.status_code == 401
    assert answer.json()["detail"].startswith("The token is not valid")


@pytest.mark.parametrize(("method", "template", "scope"), GUARDED)
def test_every_operation_needs_its_scope(broker, issuer, method, template, scope):
    """All scopes except the right one do not suffice, but the right one alone does; some operations need two.
    (R44, R46, R47, P12, C18, S86, H9)"""
    for missing in scope.split():
        others = " ".join(each for each in EVERY_SCOPE.split() if each != missing)
        refused = send_request(client_of(broker, issuer, scope=others), method, template)
        assert (refused.status_code, refused.headers["content-type"]) == (403, "application/json")
        assert refused.json() == {
            "type": "https://httpstatus.es/403",
            "title": "Forbidden",
            "status": 403,
            "detail": "Insufficient scope for this resource",
        }
    passed = send_request(client_of(broker, issuer, scope=scope), method, template)
    assert passed.status_code != 401
    assert passed.status_code < 500
    assert "Insufficient" not in passed.text


@pytest.mark.parametrize(("method", "path"), sorted(PUBLIC))
def test_some_pages_are_public(broker, method, path):
    """Health and the description of the API need no token. (R42)"""
    assert make_client(make_application(broker)).request(method, path).status_code == 200


def test_below_health_is_public_too(broker):
    """Paths below `/health` need no token, whether or not they exist. (R42)"""
    problem(make_client(make_application(broker)).get("/health/deep"), 404)


def test_a_realm_can_be_asked_for(issuer):
    """If realms are configured, a token from another realm gets 403. (R41, R44)"""
    broker = open_broker(Settings(**issuer.settings, auth_realms=("/services",)))

    stranger = client_of(broker, issuer, realm="/people").get("/event-types")
    servant = client_of(broker, issuer, realm="/services").get("/event-types")

    assert stranger.status_code == 403
    assert stranger.json()["detail"] == "Insufficient realms for this resource"
    assert servant.status_code == 200
    broker.close()


def test_with_authentication_off_any_token_will_do():
    """While authentication is off, a token may be sent and is ignored. (R41)"""
    broker = open_broker(Settings())

    assert make_client(make_application(broker), Authorization="Bearer made-up").get("/event-types").status_code == 200
    broker.close()


def test_keys_that_cannot_be_read_are_no_refusal(tmp_path, issuer):
    """If the keys cannot be fetched, a token can be neither accepted nor rejected: the answer is 503. (R45)"""
    broker = open_broker(Settings(**issuer.settings | {"auth_jwks": str(tmp_path / "missing.json")}))

    problem(client_of(broker, issuer).get("/event-types"), 503)
    broker.close()


def test_the_url_is_judged_before_the_token(broker):
    """An abnormal URL gets 400 for every client. (R31, R48)"""
    problem(make_client(make_application(broker)).get("/event-types//x"), 400)


def test_the_token_is_judged_before_the_body(broker, issuer):
    """The outer checks run in this order: token, encoding, route, body. (R48)"""
    packed = {"content-encoding": "gzip"}
    authorized = client_of(broker, issuer)

    assert make_client(make_application(broker)).put("/event-types/x", headers=packed).status_code == 401
    problem(authorized.put("/no/such/route", headers=packed), 406)
    problem(authorized.put("/no/such/route"), 404)
    problem(authorized.put("/event-types"), 405)
    problem(authorized.put("/event-types/x", content="{", headers={"content-type": "text/plain"}), 415)
    problem(authorized.put("/event-types/x", content="{", headers={"content-type": "application/json"}), 400)


# Permissions on one event type: ann administrates, bob reads, cat writes, and dan may do nothing.

LISTED = an_authorization(admins="ann", readers="bob", writers="cat")


@pytest.fixture
def event_type_with_authorization(broker, issuer):
    """The name of an event type with authorization lists."""
    return create_event_type(client_of(broker, issuer), authorization=LISTED)["name"]


def denied_view(name):
    return f"Access on VIEW event-type:{name} denied"


def denied_read(name):
    return f"Access on READ event-type:{name} denied"


def denied_write(name):
    return f"Access on WRITE event-type:{name} denied"


def denied_admin(name):
    return f"Access on ADMIN event-type:{name} denied"


CURSORS = [{"partition": "0", "offset": "BEGIN"}]
DEFINITION = a_definition()
SCHEMA = {"type": "json_schema", "schema": "{}"}

PERMISSIONS = [
    ("dan", "GET", "", None, denied_view),
    ("dan", "PUT", "", DEFINITION | {"authorization": LISTED}, denied_view),
    ("bob", "PUT", "", DEFINITION | {"authorization": LISTED}, denied_admin),
    ("dan", "DELETE", "", None, denied_view),
    ("cat", "DELETE", "", None, denied_admin),
    ("dan", "GET", "/schemas", None, denied_view),
    ("dan", "GET", "/table-runs", None, denied_view),
    ("dan", "GET", "/schemas/latest", None, denied_view),
    ("dan", "POST", "/schemas", SCHEMA, denied_view),
    ("bob", "POST", "/schemas", SCHEMA, denied_admin),
    ("dan", "POST", "/schemas?fetch=true", SCHEMA, denied_view),
    ("dan", "POST", "/schemas/latest/compatibility-check", {"schema": "{}"}, denied_view),
    ("ann", "PUT", "/partition-count", {"partition_count": 2}, denied_admin),
    ("ann", "GET", "/timelines", None, denied_admin),
    ("ann", "POST", "/timelines", {"storage_id": "default"}, denied_admin),
    ("bob", "POST", "/events", [{}], denied_write),
    ("ann", "POST", "/events", [{}], denied_write),
    ("the-admin", "POST", "/events", [{}], denied_write),
    ("bob", "POST", "/deleted-events", [{}], denied_write),
    ("dan", "GET", "/events", None, denied_view),
    ("cat", "GET", "/events", None, denied_read),
    ("the-admin", "GET", "/events", None, denied_read),
    ("dan", "GET", "/partitions", None, denied_view),
    ("dan", "GET", "/partitions/0", None, denied_view),
    ("cat", "GET", "/partitions/0", None, denied_read),
    ("dan", "POST", "/cursor-distances", [], denied_view),
    ("dan", "POST", "/cursors-lag", CURSORS, denied_view),
    ("cat", "POST", "/cursors-lag", CURSORS, denied_read),
    ("dan", "POST", "/shifted-cursors", [], denied_view),
    ("cat", "POST", "/shifted-cursors", [], denied_read),
]


@pytest.mark.parametrize(("subject", "method", "path", "body", "refusal"), PERMISSIONS)
def test_lists_keep_strangers_out(broker, issuer, event_type_with_authorization, subject, method, path, body, refusal):
    """A subject that is not in the relevant list gets 403, with the operation and the name. (R50, R51, R55, R56, R57,
    R58, R60, R107, R113, R132, R140, R144, R149, R207, R241, R242, P50, L16, C17, C31, C45, C56, C66)
    """
    if isinstance(body, dict) and "owning_application" in body:
        body = body | {"name": event_type_with_authorization}

    answer = client_of(broker, issuer, subject).request(
        method, f"/event-types/{event_type_with_authorization}{path}", json=body
    )

    assert problem(answer, 403) == refusal(event_type_with_authorization)


ALLOWED = [
    ("ann", "GET", "", None),
    ("bob", "GET", "", None),
    ("cat", "GET", "", None),
    ("the-admin", "GET", "", None),
    ("ann", "PUT", "", DEFINITION | {"authorization": LISTED}),
    ("the-admin", "PUT", "", DEFINITION | {"authorization": LISTED}),
    ("the-admin", "DELETE", "", None),
    ("ann", "POST", "/schemas", SCHEMA),
    ("bob", "POST", "/schemas?fetch=true", SCHEMA),
    ("the-admin", "PUT", "/partition-count", {"partition_count": 2}),
    ("the-admin", "GET", "/timelines", None),
    ("cat", "POST", "/events", [{}]),
    ("bob", "GET", "/partitions/0", None),
    ("cat", "GET", "/partitions", None),
    ("bob", "POST", "/cursors-lag", CURSORS),
]


@pytest.mark.parametrize(("subject", "method", "path", "body"), ALLOWED)
def test_lists_let_in_who_is_on_them(broker, issuer, event_type_with_authorization, subject, method, path, body):
    """A subject in the relevant list is admitted, and so is an administrator of the broker, for operations that
    administrators may carry out. (R51, R55, R56, R57)
    """
    if isinstance(body, dict) and "owning_application" in body:
        body = body | {"name": event_type_with_authorization}

    answer = client_of(broker, issuer, subject).request(
        method, f"/event-types/{event_type_with_authorization}{path}", json=body
    )

    assert answer.status_code < 300, answer.text


def test_the_list_shows_everything_to_everyone(broker, issuer, event_type_with_authorization):
    """The list of event types is not narrowed to visible ones. (R88, R269)"""
    names = [each["name"] for each in client_of(broker, issuer, "dan").get("/event-types").json()]

    assert event_type_with_authorization in names


def test_an_open_event_type_is_everyones(broker, issuer):
    """Without authorization, every client may change and delete the event type, and also add an authorization. (R54,
    R115)
    """
    definition = a_definition()
    create_event_type(client_of(broker, issuer), definition)
    path = f"/event-types/{definition['name']}"

    assert client_of(broker, issuer, "dan").put(path, json=definition).status_code == 200
    assert (
        client_of(broker, issuer, "dan")
        .put(path, json=definition | {"authorization": an_authorization("dan")})
        .status_code
        == 200
    )
    problem(
        client_of(broker, issuer, "eve").put(path, json=definition | {"authorization": an_authorization("eve")}), 403
    )


def test_administrators_go_beyond_what_owners_may(broker, issuer):
    """Retention limits, annotations, selector and strategy do not bind an administrator of the broker. (R114, R120)"""
    definition = a_definition(
        authorization=an_authorization("ann"),
        partition_strategy="hash",
        partition_key_fields=["a"],
        event_owner_selector={"type": "static", "name": "x", "value": "y"},
    )
    create_event_type(client_of(broker, issuer), definition)
    beyond = definition | {
        "options": {"retention_time": 1},
        "annotations": {"datalake.zalando.org/materialize-events": "perhaps"},
        "partition_strategy": "random",
        "event_owner_selector": {"type": "static", "name": "x", "value": "z"},
    }
    path = f"/event-types/{definition['name']}"

    problem(client_of(broker, issuer).put(path, json=beyond), 422)
    assert client_of(broker, issuer, "the-admin").put(path, json=beyond).status_code == 200
    assert client_of(broker, issuer).get(path).json()["options"] == {"retention_time": 1}


def test_only_event_type_admins_loosen_a_mode(broker, issuer):
    """Event type admins and administrators of the broker may make any change of mode. (R123)"""
    definition = a_definition(authorization=an_authorization("ann"), compatibility_mode="compatible")
    create_event_type(client_of(broker, issuer), definition)
    path = f"/event-types/{definition['name']}"

    assert client_of(broker, issuer).put(path, json=definition | {"compatibility_mode": "none"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/settings/admins", None),
        ("POST", "/settings/admins", an_authorization()),
        ("GET", "/settings/blacklist", None),
        ("PUT", "/settings/blacklist/CONSUMER_APP/x", None),
        ("DELETE", "/settings/blacklist/CONSUMER_APP/x", None),
        ("GET", "/settings/features", None),
        ("POST", "/settings/features", {"feature": "repartitioning"}),
    ],
)
def test_settings_are_for_administrators(broker, issuer, method, path, body):
    """A subject that is no administrator of the broker is refused all settings. (R218)"""
    answer = client_of(broker, issuer).request(method, path, json=body)

    assert problem(answer, 403) == "Admin privileges are required to perform this operation"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/storages", None),
        ("POST", "/storages", {"id": "x"}),
        ("GET", "/storages/default", None),
        ("DELETE", "/storages/x", None),
        ("PUT", "/storages/default/x", None),
    ],
)
def test_storages_are_for_administrators(broker, issuer, method, path, body):
    """A subject that is no administrator of the broker is refused all storages. (R232)"""
    answer = client_of(broker, issuer).request(method, path, json=body)

    assert problem(answer, 403) == "Admin privileges required to perform this operation"


def test_each_admin_list_has_its_own_permission(broker, issuer):
    """Readers of the settings may see them, writers may change them, and only admins may change the lists of admins.
    (R218)
    """
    administrator = client_of(broker, issuer, "the-admin")
    administrator.post("/settings/admins", json=an_authorization("eve", "fay", "gus"))
    eve, fay, gus = (client_of(broker, issuer, name) for name in ("eve", "fay", "gus"))

    assert fay.get("/settings/features").status_code == 200
    problem(gus.get("/settings/features"), 403)
    assert gus.put("/settings/blacklist/CONSUMER_APP/x").status_code == 204
    problem(fay.put("/settings/blacklist/CONSUMER_APP/x"), 403)
    problem(gus.post("/settings/admins", json=an_authorization()), 403)
    assert eve.post("/settings/admins", json=an_authorization("eve")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/settings/blacklist/ODD/x", None, 400),
        ("POST", "/settings/features", {"feature": "odd"}, 400),
        ("POST", "/settings/features", {}, 400),
        ("POST", "/settings/admins", {"admins": "x"}, 400),
        ("POST", "/settings/admins", {"admins": []}, 403),
    ],
)
def test_what_cannot_be_read_is_reported_before_who_may(broker, issuer, method, path, body, status):
    """The types of the arguments are checked before the right of an administrator, and the lists of admins after it.
    (R218, R277)
    """
    answer = client_of(broker, issuer).request(method, path, json=body)

    assert answer.status_code == status


@pytest.mark.parametrize(
    ("kind", "name", "method", "path", "body"),
    [
        ("PRODUCER_ET", "{name}", "POST", "/events", []),
        ("PRODUCER_APP", "cat", "POST", "/events", []),
        ("PRODUCER_ET", "{name}", "POST", "/deleted-events", []),
        ("CONSUMER_ET", "{name}", "GET", "/events", None),
        ("CONSUMER_APP", "cat", "GET", "/events", None),
    ],
)
def test_the_blocked_are_refused_first(broker, issuer, kind, name, method, path, body):
    """A block by event type or application is checked before existence and permission. (R226, P16, P48, L14)"""
    event_type = a_definition()["name"]
    entry = f"/settings/blacklist/{kind}/{name.format(name=event_type)}"
    administrator = client_of(broker, issuer, "the-admin")
    administrator.put(entry)

    answer = client_of(broker, issuer, "cat").request(method, f"/event-types/{event_type}{path}", json=body)

    assert problem(answer, 403) == "Application or event type is blocked"
    administrator.delete(entry)


def test_readers_named_by_team(broker, issuer):
    """A list may name teams, and a token's teams count. (R49, R51)"""
    section = an_authorization("ann") | {"readers": [{"data_type": "team", "value": "checkout"}]}
    name = create_event_type(client_of(broker, issuer), authorization=section)["name"]

    assert client_of(broker, issuer, "dan", teams=["checkout"]).get(f"/event-types/{name}").status_code == 200
    problem(client_of(broker, issuer, "dan", teams=["search"]).get(f"/event-types/{name}"), 403)
    assert attributes("x")


@pytest.mark.parametrize("subject", ["nakadi_admin", "the-service-admin"])
def test_no_one_becomes_an_administrator_by_taking_a_name(issuer, subject):
    """A user with the name of an administrating service is not an administrator, but the service itself is. (R219)"""
    settings = issuer.settings | {"default_admin": (("service", "the-service-admin"),)}
    with closing(open_broker(Settings(**settings))) as broker:
        assert client_of(broker, issuer, subject).get("/settings/admins").status_code == 403
        assert client_of(broker, issuer, subject, realm="/people").get("/storages").status_code == 403
        as_a_service = client_of(broker, issuer, subject, realm="/services").get("/settings/admins")
    assert as_a_service.status_code == (200 if subject == "the-service-admin" else 403)
