"""Metrics of several processes, combined."""

from nakadi.common.metrics import Metrics
from nakadi.local.figures import merged_metrics, take_snapshot, totals_of_ended_processes
from tests.support.metrics import collect_samples, sample_value


def make_figures(events: int, lag: float) -> Metrics:
    metrics = Metrics(started=5.0)
    metrics.stored("order", events, 10)
    metrics.streams_opened.add(1, "low")
    metrics.open_streams.set(2, "low")
    metrics.subscription_lag.set(lag, "s")
    metrics.answered("publish_events", 200, 0.003)
    metrics.clients.count_request("billing", "GET", "/", 0.1 * events)
    metrics.clients.count_sent_bytes(("lola", "billing", "order"), events)
    metrics.cpu_seconds = lambda: float(events)
    return metrics


def test_counters_and_times_add_up_and_gauges_are_combined_as_they_say():
    whole = merged_metrics([take_snapshot(make_figures(3, 1.0)), take_snapshot(make_figures(4, 7.0))])
    assert dict(whole.events_published.rows()) == {("order",): 7}
    assert dict(whole.streams_opened.rows()) == {("low",): 2}
    assert dict(whole.open_streams.rows()) == {("low",): 4}
    assert dict(whole.subscription_lag.rows()) == {("s",): 7.0}
    assert dict(whole.requests.rows()) == {("publish_events", "200"): 2}
    row = whole.request_seconds.rows()[("publish_events",)]
    assert (row.value_count, round(row.sum_of_values, 6), list(row.recent_values), sum(row.bucket_counts)) == (
        2,
        0.006,
        [0.003, 0.003],
        2,
    )
    assert (whole.started, len(whole.processes), whole.cpu_seconds()) == (5.0, 2, 7.0)


def test_what_a_process_counted_stays_after_its_end_and_its_gauges_do_not():
    gone = totals_of_ended_processes([take_snapshot(make_figures(3, 1.0)), take_snapshot(make_figures(4, 7.0))], 5.0)
    whole = merged_metrics([take_snapshot(make_figures(1, 2.0)), gone])
    assert dict(whole.events_published.rows()) == {("order",): 8}
    assert dict(whole.subscription_lag.rows()) == {("s",): 2.0}
    assert whole.request_seconds.rows()[("publish_events",)].value_count == 3
    assert (len(whole.processes), whole.cpu_seconds()) == (1, 8.0)


def test_the_last_fault_is_the_latest_of_all_processes_even_if_its_process_has_ended():
    """The time of the last fault is the latest of all processes, even after the process that reported it has ended."""

    def snapshot_of_process(at: float):
        metrics = Metrics(now=lambda: at)
        metrics.archive_unreadable.add()
        metrics.housekeeping_at.set(at)
        return take_snapshot(metrics)

    ended = totals_of_ended_processes([snapshot_of_process(100.0), snapshot_of_process(300.0)], 5.0)
    whole = merged_metrics([ended, snapshot_of_process(200.0)])

    assert dict(whole.last_faults.rows()) == {("nakadi_archive_unreadable_total",): 300.0}
    assert dict(whole.housekeeping_at.rows()) == {(): 300.0}
    assert dict(whole.archive_unreadable.rows()) == {(): 3}


def test_what_clients_did_in_several_processes_adds_up():
    """The broker keeps the clients' counts after a process has ended, like other counts. (R246)"""
    ended = totals_of_ended_processes([take_snapshot(make_figures(3, 1.0))], 5.0)
    clients = merged_metrics([ended, take_snapshot(make_figures(4, 1.0))]).clients

    [[key, row]] = clients.requests().items()
    assert key == ("billing", "GET", "/")
    assert (row.value_count, [round(each, 6) for each in row.recent_values]) == (2, [0.3, 0.4])
    assert clients.sent_bytes() == {("lola", "billing", "order"): 7}


def test_processor_time_is_reported_as_processes_counted_it():
    """The CPU time of a process that has ended is still included in that of the broker."""
    reported = collect_samples(
        merged_metrics(
            [take_snapshot(make_figures(3, 1.0)), totals_of_ended_processes([take_snapshot(make_figures(4, 1.0))], 5.0)]
        )
    )
    assert sample_value(reported, "process_cpu_seconds_total") == 7


def test_putting_together_counts_no_steps_of_this_process_twice():
    """Values that all `Metrics` of a process share, such as failed chores, come only from the snapshots, so none
    counts twice.
    """
    snapshot = take_snapshot(Metrics())
    assert dict(merged_metrics([snapshot]).chore_failures.rows()) == dict(Metrics().chore_failures.rows())


def test_event_types_that_are_deleted_are_left_out():
    """The counts of deleted event types are removed, even those of a process that has ended; other event types then
    keep their own names.
    """
    gone = Metrics(started=5.0)
    for number in range(5):
        gone.stored(f"gone-{number}", 1, 10)
    ended = totals_of_ended_processes([take_snapshot(gone)], 5.0)
    snapshots = [ended, take_snapshot(make_figures(3, 1.0))]
    whole = merged_metrics(snapshots, 2, lambda names: [name for name in names if name.startswith("gone")])
    assert dict(whole.events_published.rows()) == {("order",): 3}
    assert dict(whole.published_bytes.rows()) == {("order",): 10}


def test_processes_together_have_no_more_names_than_one():
    """Even if each process counts different event types, their total number is limited."""
    each = [Metrics() for _ in range(5)]
    for number, metrics in enumerate(each):
        metrics.stored(f"order-{number}", 1, 10)
    whole = merged_metrics([take_snapshot(metrics) for metrics in each], 2)
    assert dict(whole.events_published.rows()) == {("order-0",): 1, ("order-1",): 1, ("other",): 3}
