"""Scheduled housekeeping: retention, compaction, cleaning up, redriven dead letters, stalled subscriptions, and tables
that lack events.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from urllib.error import HTTPError
from urllib.request import urlopen

from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.engines import load_engines_on_aws
from nakadi.app.functions import FunctionMetrics, HandleInvocation, LambdaFunction
from nakadi.app.settings import read_settings
from nakadi.common.chores import failed_chore_counts, run_and_log_failure

# The longest wait for an answer, in seconds. The gateway itself waits for less.
PING_TIMEOUT_SECONDS = 60.0

# Each round looks this far back, so that even a late round misses no commit to a table. Two may see the same commit.
TWO_ROUNDS = timedelta(minutes=10)


def ping(url: str) -> None:
    """Keep the link from the gateway to the streaming service active. Any answer is enough; no answer at all is an
    error."""
    with suppress(HTTPError):
        urlopen(url, timeout=PING_TIMEOUT_SECONDS).close()  # noqa: S310  # the address of our own API, which the deployment tells


def start_table_job_if_due(broker: BrokerServices) -> tuple[float, float]:
    """Start the job that updates tables if events have waited long enough for it. Returns two numbers of seconds: how
    long the oldest waiting event has waited, and the greatest latency of the tables that changed within two rounds.
    """
    lags, job = broker.table_lag_monitor, broker.settings.table_job
    if lags is None or not job:
        return 0.0, 0.0
    if lags.claim_job_start(job, broker.settings.table_minutes * 60):
        run_and_log_failure("start of a job", job, lambda: start(job))
    return lags.greatest_lag_seconds, lags.greatest_latency_seconds(TWO_ROUNDS)


def count_table_defects(broker: BrokerServices) -> int:
    """The number of defects of events that jobs added to tables within the last two rounds, without late events."""
    if broker.table_lag_monitor is None:
        return 0
    defects = broker.table_lag_monitor.defects(TWO_ROUNDS)
    return sum(count for (_, kind), count in defects.items() if kind != "late")


def objective_figures(broker: BrokerServices) -> Iterator[tuple[str, float]]:
    """The figures of the subscription and of the table that are furthest from their objectives."""
    subscriptions = broker.subscription_services.troubled_subscriptions.objectives.values()
    yield "SubscriptionBurnRate", max((each.burn_rate for each in subscriptions), default=0.0)
    if broker.table_lag_monitor is not None:
        yield "TableBurnRate", broker.table_lag_monitor.greatest_burn_rate
        yield "TablePressure", broker.table_lag_monitor.greatest_pressure


def start(job: str) -> None:
    """Start a Glue job. If the job is already running, it will process the new events, or another run will follow."""
    import boto3  # noqa: PLC0415  # only rounds with news need it

    glue = boto3.client("glue")
    with suppress(glue.exceptions.ConcurrentRunsExceededException):
        glue.start_job_run(JobName=job)


def make_handler(counts: FunctionMetrics) -> HandleInvocation:
    @cache
    def get_broker() -> BrokerServices:
        return open_broker(read_settings(os.environ))

    def run(event: object, _context: object) -> None:
        if isinstance(event, dict) and "ask" in event:
            ping(str(event["ask"]))
            return
        broker = get_broker()
        before = sum(failed_chore_counts().values())
        lag = broker.run_housekeeping()
        table_lag, table_latency = start_table_job_if_due(broker)
        # AWS charges for each metric that is sent, so nothing is sent if there is nothing to report.
        for name, count in (
            ("FailedChores", sum(failed_chore_counts().values()) - before),
            ("StalledSubscriptions", broker.subscription_services.troubled_subscriptions.count()),
            ("GapsFound", broker.lost_events_recovery.gap_count),
            ("TableLag", round(table_lag)),
            ("TableLatency", round(table_latency)),
            ("TableDefects", count_table_defects(broker)),
            *objective_figures(broker),
        ):
            if count:
                counts.count(name, count)
        for subscription, figures in broker.subscription_services.troubled_subscriptions.objectives.items():
            if figures.is_shown:
                # Send 0 too: without a value, nobody would know that fewer consumers are enough.
                counts.count("SubscriptionPressure", figures.pressure, subscription=subscription)
        if lag is not None:
            counts.count("IndexLag", round(lag.total_seconds()))

    return run


load_engines_on_aws()
handler = LambdaFunction("housekeeping", make_handler)
