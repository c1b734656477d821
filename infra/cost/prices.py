"""The price list: region us-east-1 at the date below, without free tiers and volume tiers.

Every price names its source. A price without one is `assumed`: bills mark it, and `--price` replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

PRICES_DATE = "2026-11-21"
REGION = "us-east-1"

MILLION = 1_000_000
GB = 1 << 30
TB = 1 << 40
HOURS = 730.0
"""AWS's number of hours in a month."""
SECONDS = HOURS * 3600


class UnknownPrice(Exception):
    """Raised for a name that is not in the price list; the message is the name."""


@dataclass(frozen=True, slots=True)
class Price:
    """A price: `dollars` for each `unit`."""

    dollars: float
    unit: str
    source: str
    assumed: bool = False


Prices = Mapping[str, Price]

AWS_PAGE = "AWS's pricing page, read 2026-09-20"
BLOG = "AWS Big Data blog, 2026-03-09"
PLANS = "a machine-made copy of AWS's plans, 2026-05"
THIRD = "third party, 2026-06"
DERIVED = "third party, 2025-07"
UNSOURCED = "not read anywhere: what it is usually said to be"

PRICES: Prices = {
    # API Gateway and Lambda
    "api-request": Price(3.50 / MILLION, "request", AWS_PAGE),
    "api-out": Price(0.09, "GB", AWS_PAGE),
    "lambda-request": Price(0.20 / MILLION, "request", AWS_PAGE),
    "lambda-gb-second": Price(0.0000133334, "GB-s", "artillery 2.0.28's table, arm"),
    # The log
    "kinesis-shard-hour": Price(0.015, "shard-h", PLANS),
    "kinesis-put-unit": Price(0.014 / MILLION, "25 KB put unit", PLANS),
    "kinesis-shard-hour-kept-longer": Price(0.020, "shard-h", PLANS),
    "kinesis-consumer-hour": Price(0.015, "consumer-shard-h", PLANS),
    "kinesis-pushed": Price(0.013, "GB", PLANS),
    "kinesis-pushed-on-demand": Price(0.05, "GB", BLOG),
    "kinesis-stream-hour": Price(0.04, "stream-h", BLOG),
    "kinesis-in": Price(0.08, "GB", BLOG),
    "kinesis-out": Price(0.04, "GB", PLANS),
    "kinesis-kept-longer": Price(0.10, "GB-month", BLOG),
    # Documents and the log index
    "dynamodb-write": Price(0.625 / MILLION, "write unit", DERIVED),
    "dynamodb-read": Price(0.125 / MILLION, "read unit", DERIVED),
    "dynamodb-month": Price(0.25, "GB-month", UNSOURCED, assumed=True),
    "dynamodb-recovery-month": Price(0.20, "GB-month", UNSOURCED, assumed=True),
    # The archive
    "s3-month": Price(0.023, "GB-month", UNSOURCED, assumed=True),
    "s3-put": Price(0.005 / 1000, "request", UNSOURCED, assumed=True),
    "s3-get": Price(0.0004 / 1000, "request", UNSOURCED, assumed=True),
    "s3-region-out": Price(0.02, "GB", UNSOURCED, assumed=True),
    # Streams
    "fargate-vcpu-hour": Price(0.03238, "vCPU-h", THIRD),
    "fargate-gb-hour": Price(0.00356, "GB-h", THIRD),
    "balancer-hour": Price(0.0225, "hour", UNSOURCED, assumed=True),
    "balancer-unit-hour": Price(0.008, "capacity unit-h", UNSOURCED, assumed=True),
    "balancer-out": Price(0.09, "GB", UNSOURCED, assumed=True),
    "address-hour": Price(0.005, "public address-h", UNSOURCED, assumed=True),
    "endpoint-hour": Price(0.01, "endpoint-h", UNSOURCED, assumed=True),
    # Monitoring
    "logs-in": Price(0.50, "GB", UNSOURCED, assumed=True),
    "logs-month": Price(0.03, "GB-month", UNSOURCED, assumed=True),
    "metric-month": Price(0.30, "metric", UNSOURCED, assumed=True),
    "alarm-month": Price(0.10, "metric of an alarm", UNSOURCED, assumed=True),
    "dashboard-month": Price(3.00, "dashboard", UNSOURCED, assumed=True),
    "trace": Price(5.00 / MILLION, "trace", UNSOURCED, assumed=True),
    # Keys and images
    "key-month": Price(1.00, "key", UNSOURCED, assumed=True),
    "kms-request": Price(0.03 / 10_000, "request", UNSOURCED, assumed=True),
    "ecr-month": Price(0.10, "GB-month", UNSOURCED, assumed=True),
    # Jobs, which run on spare capacity
    "glue-dpu-hour": Price(0.29, "flexible DPU-h", UNSOURCED, assumed=True),
    "glue-streaming-dpu-hour": Price(0.44, "DPU-h", UNSOURCED, assumed=True),
    # Other services
    "eventbridge-event": Price(1.00 / MILLION, "64 KB of an event", "third party, 2026-03"),
    "pubsub-tb": Price(40.0, "TB", "copies of Google's page, undated"),
    "confluent-hour": Price(0.14, "eCKU-h", "Confluent's page, read 2026-09-05"),
    "confluent-gb": Price(0.05, "GB", "Confluent's page, read 2026-09-05"),
    "confluent-month": Price(0.08, "GB-month", "Confluent's page, read 2026-09-05"),
    "msk-serverless-hour": Price(0.75, "cluster-h", "a note of 2022-10, old"),
    "msk-serverless-partition-hour": Price(0.0015, "partition-h", "a note of 2022-10, old"),
    "msk-serverless-in": Price(0.10, "GB", "a note of 2022-10, old"),
    "msk-serverless-out": Price(0.05, "GB", "a note of 2022-10, old"),
    "msk-serverless-month": Price(0.10, "GB-month", "a note of 2022-10, old"),
    "msk-express-hour": Price(0.408, "express.m7g.large-h", "AWS's agent toolkit, 2026-08"),
    "msk-express-in": Price(0.01, "GB", "AWS's agent toolkit, 2026-08"),
    "msk-express-month": Price(0.10, "GB-month", UNSOURCED, assumed=True),
    "msk-broker-hour": Price(0.204, "m7g.large-h", "AWS's agent toolkit, 2026-08"),
    "msk-disk-month": Price(0.10, "GB-month", "AWS's agent toolkit, 2026-08"),
}


def override_prices(changes: Iterable[str], prices: Prices = PRICES) -> Prices:
    """The price list with changes given as `name=dollars`, which no longer count as assumed."""
    changed = dict(prices)
    for change in changes:
        name, _, dollars = change.partition("=")
        if name not in prices:
            raise UnknownPrice(name)
        changed[name] = replace(prices[name], dollars=float(dollars), source="as given", assumed=False)
    return changed
