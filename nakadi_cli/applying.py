"""Brings a broker to the state that manifests describe: creates missing resources, changes those that differ, and
leaves all others unchanged.

Only on request does it delete resources that belong to the manifests' applications but are in none of the manifests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nakadi_cli.api import Api, path
from nakadi_cli.failures import BadInput, Failed, NotFound
from nakadi_cli.manifests import EVENT_TYPE, SQL_QUERY, SUBSCRIPTION, Manifest
from nakadi_cli.schema_documents import PUBLISHERS_AFFECTED

if TYPE_CHECKING:
    from nakadi_client.answers import Answer

Action = Literal["create", "change", "keep", "pass over", "delete"]

_DAY = 24 * 60 * 60 * 1000
_KINDS_OF_OWNERS = {"users": "user", "services": "service", "teams": "team"}
_GIVEN_BY_BROKER = (
    "created_at",
    "updated_at",
    "measured_statistic",
    "table",
    "id",
    "status",
    "warnings",
    "changed_reads",
)


@dataclass(frozen=True)
class Difference:
    """A value that differs from the intended one."""

    path: str
    is_now: Any
    shall_be: Any


@dataclass(frozen=True)
class Step:
    """The action for one manifest."""

    kind: str
    name: str
    action: Action
    differences: tuple[Difference, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    identity: str = ""
    partitions: int | None = None
    warnings: tuple[str, ...] = ()


def plan_step(api: Api, manifest: Manifest) -> Step:
    """Compare a manifest with the broker's resource, and plan what makes the resource match."""
    try:
        if manifest.kind == EVENT_TYPE:
            return _plan_event_type(api, manifest)
        if manifest.kind == SQL_QUERY:
            return Step(manifest.kind, str(manifest.spec.get("name")), "pass over")
        return _plan_subscription(api, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else "a value is of another kind"
        raise BadInput(f"{manifest.file}: {what}.") from error


def plan_deletions(api: Api, manifests: Sequence[Manifest], steps: Sequence[Step]) -> list[Step]:
    """Find resources that belong to the manifests' applications, and are in none of the manifests; subscriptions come
    first.

    Only applications from manifests of the same kind count: manifests of subscriptions alone keep the event types.
    """
    kept = {(step.kind, step.identity or step.name) for step in steps}
    found = [
        *(
            Step(SUBSCRIPTION, _subscription_name(each), "delete", identity=each["id"])
            for owner in _owners(manifests, SUBSCRIPTION)
            for each in api.items("/subscriptions", owning_application=owner)
        ),
        *(
            Step(EVENT_TYPE, each["name"], "delete")
            for owner in _owners(manifests, EVENT_TYPE)
            for each in api.get("/event-types", owning_application=owner)
        ),
    ]
    return [step for step in found if (step.kind, step.identity or step.name) not in kept]


def execute_step(api: Api, step: Step) -> Sequence[str]:
    """Carry out a step. Returns the broker's warnings about misspelt annotations."""
    if step.action == "delete":
        collection, name = ("event-types", step.name) if step.kind == EVENT_TYPE else ("subscriptions", step.identity)
        api.delete(path(collection, name))
    elif step.kind == EVENT_TYPE:
        if step.action == "create":
            return _warnings(api.send("POST", "/event-types", body=step.body))
        if step.action == "change":
            warnings = _warnings(api.send("PUT", path("event-types", step.name), body=step.body))
            if step.partitions is not None:
                api.put(path("event-types", step.name, "partition-count"), {"partition_count": step.partitions})
            return warnings
    elif step.action == "create":
        return _warnings(api.send("POST", "/subscriptions", body=step.body))
    elif step.action == "change":
        return _warnings(api.send("PUT", path("subscriptions", step.identity), body=step.body))
    return ()


def _warnings(answer: Answer) -> Sequence[str]:
    """The warnings about annotations in the answer's header, without those that appear for every event type."""
    _, _, text = (answer.warning or "").partition('"')
    return [each for each in text.removesuffix('"').split(". ") if each.startswith("The annotation ")]


def _plan_event_type(api: Api, manifest: Manifest) -> Step:
    shall_be = _event_type(manifest.spec)
    name = shall_be["name"]
    count = manifest.spec.get("partitioning", {}).get("partitionCount")
    try:
        is_now = api.get(path("event-types", name))
    except NotFound:
        return Step(EVENT_TYPE, name, "create", body={**shall_be, **_statistic(count)})
    differences = list(_differences("", _comparable(is_now, shall_be), _comparable(shall_be, shall_be)))
    partitions = len(api.get(path("event-types", name, "partitions"))) if count is not None else None
    if count != partitions:
        differences.append(Difference("partition_count", partitions, count))
    if not differences:
        return Step(EVENT_TYPE, name, "keep")
    body = {key: value for key, value in is_now.items() if key not in _GIVEN_BY_BROKER} | shall_be
    body["options"] = {**(is_now.get("options") or {}), **shall_be.get("options", {})}
    more = count if count != partitions else None
    warnings = tuple(_schema_warnings(api, name, shall_be["schema"]["schema"])) if _schema_differs(differences) else ()
    return Step(EVENT_TYPE, name, "change", tuple(differences), body, partitions=more, warnings=warnings)


def _schema_differs(differences: Sequence[Difference]) -> bool:
    return any(each.path.partition(".")[0] == "schema" for each in differences)


def _schema_warnings(api: Api, event_type: str, schema: str) -> Iterator[str]:
    """The permitted changes of a schema after which the broker rejects events that publishers send today."""
    try:
        verdict = api.post(
            path("event-types", event_type, "schemas", "latest", "compatibility-check"), {"schema": schema}
        )
    except Failed:
        return  # the request for the change will report the error
    for change in verdict.get("changes", ()):
        if change["rule"] == PUBLISHERS_AFFECTED and change["permitted"]:
            yield str(change["explanation"])


def _plan_subscription(api: Api, manifest: Manifest) -> Step:
    shall_be = _subscription(manifest.spec)
    event_types = sorted(set(shall_be["event_types"]))
    name = _subscription_name(shall_be)
    found = api.items("/subscriptions", owning_application=shall_be["owning_application"], event_type=event_types)
    same = [
        each
        for each in found
        if each["consumer_group"] == shall_be["consumer_group"] and sorted(each["event_types"]) == event_types
    ]
    if not same:
        return Step(manifest.kind, name, "create", body={"read_from": "end", **shall_be})
    [is_now] = same
    # Once a subscription exists, its starting point has no effect.
    compared = {key: value for key, value in shall_be.items() if key not in {"event_types", "read_from"}}
    differences = tuple(_differences("", _comparable(is_now, compared), _comparable(compared, compared)))
    if not differences:
        return Step(manifest.kind, name, "keep", identity=is_now["id"])
    body = {key: value for key, value in is_now.items() if key not in _GIVEN_BY_BROKER} | compared
    return Step(manifest.kind, name, "change", differences, body, is_now["id"])


def _subscription_name(definition: Mapping[str, Any]) -> str:
    event_types = ", ".join(sorted(set(definition["event_types"])))
    return f"{definition['owning_application']}/{definition['consumer_group']} of {event_types}"


def _owners(manifests: Sequence[Manifest], kind: str) -> list[str]:
    return sorted({manifest.spec["owningApplication"] for manifest in manifests if manifest.kind == kind})


def _event_type(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The event type in the form that the API accepts."""
    partitioning, cleanup, schema = spec.get("partitioning", {}), spec.get("cleanup", {}), spec["schema"]
    found: dict[str, Any] = {
        "name": spec["name"],
        "owning_application": spec["owningApplication"],
        "category": spec["category"],
        "audience": spec.get("audience"),
        "partition_strategy": partitioning.get("strategy"),
        "partition_key_fields": (partitioning.get("keys") or []) if partitioning else None,
        "cleanup_policy": cleanup.get("policy"),
        "options": {"retention_time": cleanup.get("retentionTimeDays", 1) * _DAY} if cleanup else None,
        "compatibility_mode": schema.get("compatibility"),
        "schema": {"type": "json_schema", "schema": json.dumps(schema["jsonSchema"], ensure_ascii=False)},
        "authorization": _authorization(spec.get("auth"), ("admins", "readers", "writers")),
        "enrichment_strategies": [] if spec["category"] == "undefined" else ["metadata_enrichment"],
        "event_owner_selector": spec.get("eventOwnerSelector"),
        "deduplication": {"window_seconds": seconds} if (seconds := spec.get("deduplicationSeconds")) else None,
        "annotations": spec.get("annotations") or {},
        "labels": spec.get("labels"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _subscription(spec: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "owning_application": spec["owningApplication"],
        "event_types": list(spec["eventTypes"]),
        "consumer_group": spec["consumerGroup"],
        "read_from": spec.get("readFrom"),
        "authorization": _authorization(spec.get("auth"), ("admins", "readers")),
        "annotations": spec.get("annotations"),
        "labels": spec.get("labels"),
        "reads": spec.get("reads"),
        "projection": spec.get("projection"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _authorization(auth: Mapping[str, Any] | None, roles: tuple[str, ...]) -> dict[str, Any] | None:
    if auth is None:
        return None
    lists: dict[str, list[dict[str, str]]] = {role: [] for role in roles}
    for section, data_type in _KINDS_OF_OWNERS.items():
        for role in roles:
            names = _flatten((auth.get(section) or {}).get(role))
            lists[role] += [{"data_type": data_type, "value": str(name)} for name in dict.fromkeys(names)]
    for role, right in (("readers", "read"), ("writers", "write")):
        if role in roles and (auth.get("anyToken") or {}).get(right):
            lists[role].append({"data_type": "*", "value": "*"})
    return lists


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _flatten(each)
    elif value is not None:
        yield value


def _statistic(partitions: int | None) -> dict[str, Any]:
    if partitions is None:
        return {}
    one = {"messages_per_minute": 1, "message_size": 1}
    return {"default_statistic": {**one, "read_parallelism": partitions, "write_parallelism": partitions}}


def _comparable(definition: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the members to compare, in a form in which equivalent values are equal."""
    found = {key: definition.get(key) for key in like}
    if "schema" in found:
        found["schema"] = json.loads(definition["schema"]["schema"])
    if "options" in found:
        found["options"] = {key: (definition.get("options") or {}).get(key) for key in like["options"]}
    for key in ("annotations", "labels"):
        if key in found:
            found[key] = found[key] or {}
    if "authorization" in found:
        lists = definition.get("authorization") or {}
        found["authorization"] = {
            role: sorted(f"{each['data_type']}:{each['value']}" for each in lists.get(role) or ())
            for role in like["authorization"]
        }
    return found


def _differences(where: str, is_now: Any, shall_be: Any) -> Iterator[Difference]:
    if isinstance(is_now, dict) and isinstance(shall_be, dict):
        for key in {**is_now, **shall_be}:
            yield from _differences(f"{where}.{key}" if where else key, is_now.get(key), shall_be.get(key))
    elif is_now != shall_be:
        yield Difference(where, is_now, shall_be)
