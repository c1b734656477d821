"""`python -m infra.cost`: the monthly bill for a load."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields

from infra.cost import report
from infra.cost.bill import bill_lines
from infra.cost.elsewhere import offers_elsewhere
from infra.cost.flows import Flows
from infra.cost.idle import idle_costs
from infra.cost.load import Assumed, BadLoad, Deployment, Load, Measured
from infra.cost.prices import PRICES, UnknownPrice, override_prices

MODES = ("provisioned", "on-demand")
STORAGES = ("kinesis", "msk")
CLUSTERS = ("serverless", "express", "provisioned")


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    if options.prices:
        return _print(report.price_lines(PRICES))
    try:
        prices = override_prices(options.price)
        flows = Flows(
            load=Load(**{each.name: getattr(options, each.name) for each in fields(Load)}),
            deployment=Deployment(**{each.name: getattr(options, each.name) for each in fields(Deployment)}),
            measured=Measured(),
            assumed=Assumed(),
        )
        lines = bill_lines(flows, prices)
    except BadLoad as error:
        return _print_error(str(error))
    except (UnknownPrice, ValueError) as error:
        return _print_error(f"--price is like api-request=0.0000035, and --prices lists the names; not like {error}")
    others = offers_elsewhere(flows.load, prices, options.confluent_units)
    return _print(report.report_lines(flows, lines, others, idle_costs(flows, prices), details=options.details))


def _print(lines: Iterable[str]) -> int:
    sys.stdout.write("".join([f"{line.rstrip()}\n" for line in lines]))
    return 0


def _print_error(why: str) -> int:
    sys.stderr.write(f"{why}\n")
    return 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.cost", description="What a load costs on AWS in a month.")
    load = parser.add_argument_group("the load")
    for name, text in LOAD.items():
        _add_number(load, name, getattr(Load(), name), text)
    deployment = parser.add_argument_group("the deployment")
    deployment.add_argument("--storage", choices=STORAGES, default=Deployment().storage)
    deployment.add_argument("--msk", choices=CLUSTERS, default=Deployment().msk)
    deployment.add_argument("--stream-mode", choices=MODES, default=Deployment().stream_mode)
    for name, text in DEPLOYMENT.items():
        _add_number(deployment, name, getattr(Deployment(), name), text)
    for name, text in SWITCH_DESCRIPTIONS.items():
        default = getattr(Deployment(), name)
        deployment.add_argument(_option_name(name), action=argparse.BooleanOptionalAction, default=default, help=text)
    prices = parser.add_argument_group("prices")
    prices.add_argument("--price", action="append", default=[], metavar="NAME=DOLLARS", help="another price")
    prices.add_argument("--prices", action="store_true", help="print all prices with their sources, and end")
    prices.add_argument("--confluent-units", type=float, default=0.0, help="eCKUs beyond the first, which is free")
    parser.add_argument("--details", action="store_true", help="every line of the bill")
    return parser


def _add_number(group: argparse._ArgumentGroup, name: str, default: float, text: str) -> None:
    group.add_argument(_option_name(name), type=type(default), default=default, help=f"{text} ({default:g})")


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


LOAD = {
    "events_per_second": "events published per second",
    "event_bytes": "size of an event as JSON",
    "batch": "events of a publish request",
    "event_types": "event types that they are published to, evenly",
    "partitions": "partitions of an event type",
    "consumers": "applications that read everything",
    "streams": "streams of each of them",
    "delivered_batch": "events of a delivered batch, and so of a commit",
    "retention_days": "days that events are kept",
    "deduplicated": "share of events whose event types store them once",
}
DEPLOYMENT = {
    "kinesis_streams": "streams of Kinesis; their shards are given together",
    "shards": "shards at least; more are counted when they are needed",
    "brokers": "brokers of MSK, where it is not serverless",
    "disk_gb": "disk of each of them, where it is provisioned",
    "indexers": "invocations of the indexer a minute, with MSK",
    "index_seconds": "time that the indexer collects records",
    "publish_memory": "MiB of the functions that publish and index",
    "function_memory": "MiB of the others",
    "streaming_vcpu": "processors of a streaming task",
    "streaming_gb": "memory of a streaming task",
    "min_tasks": "tasks at least",
    "streams_per_task": "streams of a task",
    "endpoints": "interface endpoints beside those of a private network",
    "own_keys": "keys of KMS that are one's own",
    "recovery_days": "days to which tables can be restored to the second; the price is the same for any number but 0",
    "version_days": "days that objects are kept after they were replaced or removed",
    "sinks": "sinks that deliver all the time",
    "queries": "queries with SQL a day",
    "query_memory": "MiB of the function that answers them",
    "stream_minutes": "minutes that a stream lasts",
    "flush_seconds": "longest time until a batch is delivered",
    "log_days": "days that log lines are kept",
    "dpu_hours_per_day": "DPU-hours of jobs a day, without those that are started by news",
    "table_minutes": "minutes that events wait until a job is started for their tables; 0 for none",
}
SWITCH_DESCRIPTIONS = {
    "compressed_streams": "streams are packed with gzip",
    "fan_out": "each task has consumers of its own that shards are pushed to",
    "private_network": "tasks have no addresses, and reach AWS by endpoints",
    "direct": "events, commits and streams by the load balancer of direct_domain, and none by the gateway",
    "archive_replica": "the archive is copied to another region",
    "asleep": "no streaming tasks and no load balancer",
    "canary": "new versions of functions are tried first, and have alarms for it",
    "table_stream": "that job runs all the time once it was started",
    "more_alarms": "alarms for a slow registry, refused publishers, missed objectives and an unreadable archive",
    "dashboard": "a dashboard of CloudWatch",
    "detailed_metrics": "metrics of each method of the API",
}

if __name__ == "__main__":
    sys.exit(main())
