"""On a schedule: retention, compaction, leftovers, dead letters to redrive, stalled subscriptions, tables with news."""

import os
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

# More than the gateway itself waits.
PATIENCE = 60.0

# No commit to a table is missed by a round that begins late; one that is seen twice is the same maximum.
TWO_ROUNDS = timedelta(minutes=10)


def ask(url: str) -> None:
    """Keep the gateway's way to the streaming service open: any answer is one, and none is a fault."""
    with suppress(HTTPError):
        urlopen(url, timeout=PATIENCE).close()  # noqa: S310  # the address of our own API, which the deployment tells


def keep_tables(broker: BrokerServices) -> tuple[float, float]:
    """Start the job that brings tables up to date, when events wait for it. Returns how many seconds the oldest of them
    has waited, and how many the oldest had waited of those that came into tables since the last round."""
    lags, job = broker.table_lag_monitor, broker.settings.table_job
    if lags is None or not job:
        return 0.0, 0.0
    if lags.claim_job_start(job, broker.settings.table_minutes * 60):
        run_and_log_failure("start of a job", job, lambda: start(job))
    return lags.greatest_lag_seconds, lags.greatest_latency_seconds(TWO_ROUNDS)


def start(job: str) -> None:
    """Start a job of Glue. One that is running will see what is new, or be followed by another run."""
    import boto3  # noqa: PLC0415  # only rounds with news need it

    glue = boto3.client("glue")
    with suppress(glue.exceptions.ConcurrentRunsExceededException):
        glue.start_job_run(JobName=job)


def opened(counts: FunctionMetrics) -> HandleInvocation:
    @cache
    def opened_broker() -> BrokerServices:
        return open_broker(read_settings(os.environ))

    def run(event: object, _context: object) -> None:
        if isinstance(event, dict) and "ask" in event:
            ask(str(event["ask"]))
            return
        broker = opened_broker()
        before = sum(failed_chore_counts().values())
        lag = broker.run_housekeeping()
        table_lag, table_latency = keep_tables(broker)
        # A metric is paid for as soon as it is sent, so no metric is sent where there is nothing to report.
        for name, count in (
            ("FailedChores", sum(failed_chore_counts().values()) - before),
            ("StalledSubscriptions", len(broker.subscription_services.stalled_subscriptions.stalled_ids)),
            ("GapsFound", broker.lost_events_recovery.gap_count),
            ("TableLag", round(table_lag)),
            ("TableLatency", round(table_latency)),
        ):
            if count:
                counts.count(name, count)
        if lag is not None:
            counts.count("IndexLag", round(lag.total_seconds()))

    return run


load_engines_on_aws()
handler = LambdaFunction("housekeeping", opened)
