"""`nakadi doctor`: says whether a broker is healthy, and why not."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import click

from nakadi_cli.api import Api, path
from nakadi_cli.commands import chosen_format, command, connect, print_note, print_result
from nakadi_cli.failures import BadInput, CheckFoundProblems, Failed, NotAnswered, NotFound, NotPermitted, Refused
from nakadi_cli.output import format_count, harmless

State = Literal["well", "notice", "ill"]

_COLORS = {"well": "green", "notice": "yellow", "ill": "red"}
# Features that operators switch on for a while and may forget, although they restrict the broker.
_HINDRANCES = {
    "disable_event_type_creation": "no event types can be created",
    "disable_event_type_deletion": "no event types can be deleted",
    "disable_subscription_creation": "no subscriptions can be created",
    "disable_db_write_operations": "the registry is read-only",
}
_SLOW_SECONDS = 2.0
_MOST_SUBSCRIPTIONS = 200
_UNREAD_SECONDS = 60.0
# A subscription is often created some time before its consumer is deployed.
_NEVER_READ_SECONDS = 3600.0
_SHARE_OF_FULL_DISK = 0.02
_CHECK_SECONDS, _MOST_CHECKS = 0.2, 5
# The broker retries a failed operation within minutes. What failed less than five minutes ago probably still fails.
_RECENT_SECONDS, _CURRENT_SECONDS = 900.0, 300.0
_FAILED_COMMITS = "commit to the event log failed"
_LOST_COMMITS = (
    "events may not be stored: the log has the cause, such as a locked data file, after `Append to`;"
    " see NakadiCannotStoreEvents in docs/operations.md"
)
_FAULTS = {
    "nakadi_sqlite_commit_failures_total": (_FAILED_COMMITS, ""),
    "nakadi_archive_failures_total": ("attempt to archive failed", "NakadiIndexerIsBehind"),
    "nakadi_worker_restarts_total": ("restart of workers", "NakadiWorkersDie"),
}
"""What the metrics of faults count, and the section of docs/operations.md that helps."""

_SLOW_COMMIT_SECONDS = 1.0


_LABEL = re.compile(r'(\w+)="([^"]*)"')
_REPAIR = (
    "Streams wait there. Repair: nakadi restore BACKUP --data /tmp/restored, and copy the object from"
    " /tmp/restored/archive to the same place in the archive. Without a backup, see NakadiArchiveIsDamaged in"
    " docs/operations.md"
)

_NOT_MOUNTED = (
    "Streams wait there, and nothing is lost. Check that the file system or bucket of the archive is there, and that"
    " the broker may read it; the log names the cause; see NakadiArchiveCannotBeRead in docs/operations.md"
)

_SILENT_PROCESSES = "The broker replaces a silent worker by itself; see NakadiWorkersDie in docs/operations.md"


@dataclass(frozen=True)
class Finding:
    """The result of one check. `why` may have several lines, and begins with the most important one."""

    what: str
    state: State
    why: str


@command(
    "doctor",
    "nakadi doctor",
    "nakadi doctor --context live -o json",
    "nakadi doctor --write-rules /etc/prometheus/nakadi",
)
@click.option(
    "--write-rules",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write alert rules for Prometheus and a dashboard for Grafana into this folder, and check no broker.",
)
def doctor(folder: Path | None) -> None:
    """Check the health of a broker, and give reasons; the exit code is 1 if something is wrong.

    The command checks whether the broker is reachable, ready and fast, whether the token is valid, which features
    restrict work, who is blocked, where the default storage is, whether disks are full, what has failed in the last
    quarter of an hour, whether commits are slow, which parts of the archive are damaged, which subscriptions are
    stalled, have parked events or are not read, and which annotations are misspelled. It names the processes of the
    broker, and those that do not answer. It reports and skips whatever the token may not see.
    """
    if folder is not None:
        _write_rules(folder)
        return
    findings = list(examine_broker(connect()))
    if chosen_format("table") == "table":
        for each in findings:
            click.secho(f"{each.state:6} ", fg=_COLORS[each.state], nl=False)
            first, *others = each.why.split("\n")
            click.echo(harmless(f"{each.what}: {first}"))
            for line in others:
                click.echo(harmless(f"{'':7}{line}"))
    else:
        print_result([vars(each) for each in findings])
    if ill := sum(each.state == "ill" for each in findings):
        raise CheckFoundProblems(f"{ill} of {len(findings)} checks failed.")


def _write_rules(folder: Path) -> None:
    from nakadi_cli.monitoring.alerts import ALERTS
    from nakadi_cli.monitoring.grafana import dashboard
    from nakadi_cli.monitoring.prometheus import alert_rules

    files = {"nakadi-alerts.yaml": alert_rules(ALERTS), "nakadi-dashboard.json": dashboard()}
    for name, text in files.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
        except OSError as error:
            raise BadInput(f"{folder / name} cannot be written: {error.strerror}.") from error
        print_note(f"Wrote {folder / name}.")


def examine_broker(api: Api) -> Iterator[Finding]:
    """Make the checks one after the other. A check on which later ones depend comes before them."""
    try:
        api.connect()
        began = time.monotonic()
        api.send("GET", "/health")
        seconds = time.monotonic() - began
    except Failed as failed:
        yield Finding("reach", "ill", failed.message)
        return
    quick = seconds < _SLOW_SECONDS
    yield Finding("reach", "well" if quick else "notice", f"{api.url} answered in {seconds * 1000:.0f} ms")
    for what, look in _LOOKS.items():
        try:
            yield look(api)
        except NotPermitted as refused:
            state: State = "ill" if what == "token" else "notice"
            yield Finding(what, state, f"not permitted: {refused.message}")
        except NotAnswered as failed:
            yield Finding(what, "ill", failed.message)
        except Failed as failed:
            yield Finding(what, "notice", failed.message)
        except (KeyError, TypeError, AttributeError):
            yield Finding(what, "ill", "the answer does not come from a Nakadi broker")


def _check_readiness(api: Api) -> Finding:
    api.send("GET", "/ready")
    return Finding("ready", "well", "the registry answers")


def _check_version(api: Api) -> Finding:
    revision = api.get("/version")["scm_source"]["revision"]
    return Finding("version", "well", f"revision {revision}")


def _check_token(api: Api) -> Finding:
    found = api.get("/event-types")
    return Finding("token", "well", f"calls are permitted; there are {len(found)} event types")


def _check_features(api: Api) -> Finding:
    on = {each["feature"] for each in api.get("/settings/features")["items"] if each["enabled"]}
    hindering = [f"{name} is on: {effect}" for name, effect in _HINDRANCES.items() if name in on]
    return Finding("features", "notice" if hindering else "well", "; ".join(hindering) or "none restricts work")


def _check_blocks(api: Api) -> Finding:
    found = api.get("/settings/blacklist")
    names = [name for side in found.values() for group in side.values() for name in group]
    return Finding("blocks", "notice" if names else "well", f"blocked: {', '.join(names)}" if names else "none")


def _check_storage(api: Api) -> Finding:
    chosen = [each["id"] for each in api.get("/storages") if each["default"]]
    if not chosen:
        return Finding("storage", "ill", "there is no default storage for new event types")
    return Finding("storage", "well", f"new event types go to {chosen[0]}")


def check_subscriptions(api: Api, now: Callable[[], float] = time.time) -> Finding:
    seen, stalled, parked, unread = 0, [], [], defaultdict[str, list[str]](list)
    for subscription in api.items("/subscriptions"):
        if seen == _MOST_SUBSCRIPTIONS:
            break
        seen += 1
        identity = subscription["id"]
        stats: dict[str, Any] = api.get(path("subscriptions", identity, "stats"))
        if any(each.get("stalled") for item in stats["items"] for each in item["partitions"]):
            stalled.append(identity)
        elif reason := _describe_missing_reader(api, stats, subscription, now()):
            unread[reason].append(identity)
        if "PARK_KEY" in (subscription.get("annotations") or {}).values():
            where = path("subscriptions", identity, "parked-events")
            parked += [identity] if api.get(where, limit=1)["items"] else []
    found = []
    if stalled:
        commands = ", ".join(f"nakadi subscriptions lag {identity}" for identity in stalled)
        found.append(f"stalled: {', '.join(stalled)} (see {commands})")
    if parked:
        found.append(f"with parked events: {', '.join(parked)}")
    found += [f"{reason}: {', '.join(identities)}" for reason, identities in unread.items()]
    looked = f"checked {seen}" if seen < _MOST_SUBSCRIPTIONS else f"checked the newest {seen}"
    return Finding("subscriptions", "ill" if stalled else "notice" if found else "well", "; ".join([looked, *found]))


def _describe_missing_reader(
    api: Api, stats: Mapping[str, Any], subscription: Mapping[str, Any], now: float
) -> str | None:
    if _waits_without_reader(api, stats, subscription["id"]):
        return "with events that have waited for more than a minute, and no reader"
    if _was_never_read(api, stats, subscription, now):
        return "with events, and never read since their creation an hour ago or longer"
    return None


def _waits_without_reader(api: Api, stats: Mapping[str, Any], identity: str) -> bool:
    """Whether a subscription has had events for a while, and no stream reads them."""
    partitions = [each for item in stats["items"] for each in item["partitions"]]
    if any(each.get("stream_id") for each in partitions) or not any(
        each.get("unconsumed_events") for each in partitions
    ):
        return False
    # Only now, because the broker has to read the next event of each partition for it.
    items = api.get(path("subscriptions", identity, "stats"), show_time_lag="true")["items"]
    lags = [each.get("consumer_lag_seconds") or 0 for item in items for each in item["partitions"]]
    return max(lags, default=0) > _UNREAD_SECONDS


def _was_never_read(api: Api, stats: Mapping[str, Any], subscription: Mapping[str, Any], now: float) -> bool:
    """Whether a subscription was created a while ago, has events, and never had a stream. The broker counts its events
    only from its first stream on. If it reads from the end, those that were published since its creation count.
    """
    partitions = [each for item in stats["items"] for each in item["partitions"]]
    created_at = subscription.get("created_at")
    if created_at is None or any("unconsumed_events" in each for each in partitions):
        return False
    if now - datetime.fromisoformat(created_at).timestamp() < _NEVER_READ_SECONDS:
        return False
    start = "BEGIN" if subscription.get("read_from") == "begin" else created_at
    offsets = {
        (each["event_type"], each["partition"]): each["offset"] for each in subscription.get("initial_cursors") or ()
    }
    for item in stats["items"]:
        name, numbers = item["event_type"], [each["partition"] for each in item["partitions"]]
        cursors = [{"partition": each, "offset": offsets.get((name, each), start)} for each in numbers]
        # The caller may not read the event type, or its events after the cursor may be gone.
        with suppress(Refused):
            lags = api.post(path("event-types", name, "cursors-lag"), cursors)
            if any(each["unconsumed_events"] > 0 for each in lags):
                return True
    return False


def check_machine(api: Api, now: Callable[[], float] = time.time) -> Finding:
    """Check the metrics for problems that affect all clients: a full disk, and recent faults."""
    try:
        metrics = _read_metrics(api)
    except NotFound:
        return Finding("machine", "well", "this broker shows no metrics; CloudWatch has them")
    full = [
        f"the disk of {place} has {free / 1e6:,.0f} MB left"
        for place, free, size in _read_disks(metrics)
        if free < _SHARE_OF_FULL_DISK * size
    ]
    faults = list(_faults(metrics, now()))
    lost = any(each.what == _FAILED_COMMITS and each.is_current and not each.works_since for each in faults)
    slow = _describe_slow_commits(metrics)
    found = [*full, *(str(each) for each in faults), *([_LOST_COMMITS] if lost else []), *slow]
    noticed = slow or any(each.is_recent for each in faults)
    state: State = "ill" if full or lost else "notice" if noticed else "well"
    return Finding("machine", state, "; ".join(found) or "disks have room, and nothing has failed")


def _describe_slow_commits(metrics: Mapping[str, float]) -> list[str]:
    seconds = metrics.get("nakadi_sqlite_recent_commit_seconds", 0)
    if seconds < _SLOW_COMMIT_SECONDS:
        return []
    took = f"commits to the data file took {seconds:.1f} s on average in the last minute"
    return [f"{took}; see NakadiRegistryIsSlow in docs/operations.md"]


def check_processes(api: Api) -> Finding:
    """Name the processes of the broker, for operators who look at its machine, and say which of them do not answer."""
    try:
        metrics = _read_metrics(api)
    except NotFound:
        return Finding("processes", "well", "this broker shows no metrics")
    silent = _values_by_process(metrics, "nakadi_process_silent_seconds")
    answering = sorted(_values_by_process(metrics, "nakadi_process_info").keys() - silent.keys())
    named = f"its process ids are {', '.join(map(str, answering))}" if answering else "unknown"
    expected = int(metrics.get("nakadi_processes_expected", 0))
    if not silent and len(answering) >= expected:
        return Finding("processes", "well", named)
    lines = [f"process {each} has not answered for {seconds:.0f} s" for each, seconds in sorted(silent.items())]
    if len(answering) + len(silent) < expected:
        lines.append("a worker has not started yet")
    why = f"{len(answering)} of {expected} processes answer ({named}); {'; '.join(lines)}. {_SILENT_PROCESSES}"
    return Finding("processes", "ill" if silent else "notice", why)


def _values_by_process(metrics: Mapping[str, float], name: str) -> Mapping[int, float]:
    return {
        int(dict(_LABEL.findall(sample))["process"]): value
        for sample, value in metrics.items()
        if sample.startswith(f"{name}{{")
    }


def check_archive(api: Api, now: Callable[[], float] = time.time) -> Finding:
    """Check whether reads reach the archive, and look for damaged parts that streams have reached."""
    try:
        metrics = _read_metrics(api)
        failing = _find_fault(metrics, "nakadi_archive_read_failures_total", "read of the archive failed", "", now())
        if failing is not None and failing.is_current:
            return Finding("archive", "ill", f"{failing}. {_NOT_MOUNTED}")
        damaged = _damaged_parts(api)
        for _ in range(_MOST_CHECKS if damaged else 0):
            # Each reading of the metrics makes the broker check damaged parts again, which takes a moment.
            time.sleep(_CHECK_SECONDS)
            damaged = _damaged_parts(api)
    except NotFound:
        return Finding("archive", "well", "this broker shows no metrics; CloudWatch has them")
    if not damaged:
        return Finding("archive", "well", "no stream has found a part of the archive damaged")
    places: dict[str, list[str]] = {}
    for each in damaged:
        place = f"offsets {each['offsets']} of partition {each['partition']} of {each['event_type']}"
        places.setdefault(each["object"], []).append(place)
    lines = [f"{name} is damaged or missing: {', '.join(lost)}" for name, lost in places.items()]
    return Finding("archive", "ill", "\n".join([f"{format_count(len(places), 'object')}. {_REPAIR}", *lines]))


def _damaged_parts(api: Api) -> list[dict[str, str]]:
    samples = _read_metrics(api)
    return [dict(_LABEL.findall(each)) for each in samples if each.startswith("nakadi_archive_damaged_offsets{")]


@dataclass(frozen=True)
class _Fault:
    """A fault that a broker counts. `what` describes the fault, and begins with a noun in the singular. `age` is the
    time since the fault last happened; brokers of earlier versions do not report that time. `works_since` is the Unix
    time since which the fault has not happened again, if the broker has noticed that, or 0.
    """

    what: str
    section: str
    count: float
    age: float | None
    works_since: float = 0

    @property
    def is_recent(self) -> bool:
        return self.age is None or self.age < _RECENT_SECONDS

    @property
    def is_current(self) -> bool:
        return self.age is not None and self.age < _CURRENT_SECONDS

    def __str__(self) -> str:
        last = "" if self.age is None else f", the last one {max(self.age, 0) / 60:,.0f} minutes ago"
        noun, _, rest = self.what.partition(" ")
        works = f"; commits have succeeded since {_format_time(self.works_since)}" if self.works_since else ""
        see = f"; see {self.section} in docs/operations.md" if self.section and self.is_recent else ""
        return f"{format_count(int(self.count), noun)} {rest} since the start{last}{works}{see}"


def _format_time(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def _faults(metrics: Mapping[str, float], now: float) -> Iterator[_Fault]:
    found = (_find_fault(metrics, name, what, section, now) for name, (what, section) in _FAULTS.items())
    return (each for each in found if each is not None)


def _find_fault(metrics: Mapping[str, float], name: str, what: str, section: str, now: float) -> _Fault | None:
    count = _sum_of_metric(metrics, name)
    if not count:
        return None
    last_at = metrics.get(f'nakadi_last_fault_timestamp_seconds{{metric="{name}"}}')
    recovered_at = metrics.get("nakadi_sqlite_commits_recovered_timestamp_seconds", 0) if what == _FAILED_COMMITS else 0
    works_since = recovered_at if last_at is not None and recovered_at >= last_at else 0
    return _Fault(what, section, count, None if last_at is None else now - last_at, works_since)


def _read_metrics(api: Api) -> Mapping[str, float]:
    """The samples of all metrics, by their name with its labels."""
    samples = (line.rsplit(" ", 1) for line in api.metrics().splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def _sum_of_metric(metrics: Mapping[str, float], name: str) -> float:
    return sum(value for sample, value in metrics.items() if sample.partition("{")[0] == name)


def _read_disks(metrics: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Each location of the broker's data, with the free bytes and the size of its file system."""
    for place in ("data", "archive"):
        label = f'{{place="{place}"}}'
        if size := metrics.get(f"nakadi_disk_size_bytes{label}"):
            yield place, metrics.get(f"nakadi_disk_free_bytes{label}", size), size


def _check_annotations(api: Api) -> Finding:
    """Look for misspelled annotations, which the broker names in its objects."""
    found = [(f"event type {each['name']}", each) for each in api.get("/event-types")]
    subscriptions = islice(api.items("/subscriptions"), _MOST_SUBSCRIPTIONS)
    found += [(f"subscription {each['id']}", each) for each in subscriptions]
    wrong = [f"{what}: {warning}" for what, each in found for warning in each.get("warnings", ())]
    return Finding("annotations", "notice" if wrong else "well", "; ".join(wrong) or "none is misspelled")


_LOOKS: dict[str, Callable[[Api], Finding]] = {
    "ready": _check_readiness,
    "version": _check_version,
    "token": _check_token,
    "features": _check_features,
    "blocks": _check_blocks,
    "storage": _check_storage,
    "processes": check_processes,
    "machine": check_machine,
    "archive": check_archive,
    "subscriptions": check_subscriptions,
    "annotations": _check_annotations,
}
