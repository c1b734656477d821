"""Health, readiness, metrics, version, and the description of the API."""

import pytest

from tests.support.api import problem


@pytest.mark.parametrize("accept", ["*/*", "text/plain", "application/json"])
def test_health_is_ok(api, accept):
    """A live broker answers a health check with plain text, whatever the client accepts. (R244)"""
    answer = api.get("/health", headers={"accept": accept})

    assert (answer.status_code, answer.text) == (200, "OK")
    assert answer.headers["content-type"] == "text/plain"


def test_the_description_and_its_page_are_for_everyone(api):
    """The API description is JSON, and its page is HTML. A method that a path does not support gets 405 with the
    supported methods. (R26)
    """
    description, page, health = api.get("/openapi.json"), api.get("/docs"), api.delete("/health")

    assert (description.status_code, description.headers["content-type"]) == (200, "application/json")
    assert "/event-types" in description.json()["paths"]
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<html" in page.text
    assert problem(health, 405) == "Request method 'DELETE' not supported"
    assert set(health.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}


def test_it_is_ready(api):
    """If the registry answers, the broker says in plain text that it is ready, whatever the client accepts."""
    answer = api.get("/ready", headers={"accept": "application/json"})

    assert (answer.status_code, answer.text) == (200, "OK")


def test_metrics_count_what_was_done(api):
    """Metrics have the members that monitoring looks for, are never cached, and count operations. (R245)"""
    api.get("/registry/partition-strategies")

    answer = api.get("/metrics")

    assert answer.headers["cache-control"] == "must-revalidate,no-cache,no-store"
    assert set(answer.json()) == {"version", "gauges", "counters", "histograms", "meters", "timers"}
    assert answer.json()["counters"]["nakadi.http.list_partition_strategies.200"]["count"] >= 1
    assert answer.json()["timers"]["nakadi.http.list_partition_strategies"]["p99"] >= 0


def test_metrics_can_be_read_by_people(api):
    """With `pretty` the metrics are indented. (R245)"""
    assert "\n  " in api.get("/metrics", params={"pretty": "true"}).text


def test_the_version_is_reported(api):
    """The answer has the version of the broker under `scm_source`. (R247)"""
    assert set(api.get("/version").json()["scm_source"]) == {"author", "revision", "status", "url"}
