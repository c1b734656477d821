"""Reads the metrics of a process as Prometheus does."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from nakadi.common.metrics import Metrics
from nakadi.http.metrics_prometheus import PLAIN_MEDIA_TYPE, make_prometheus_renderer

TEXT = "text/plain;version=0.0.4"

# The headers that Prometheus 3 sends.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def parse_samples(text: str) -> Samples:
    """The values of all samples, by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(api: httpx.Client) -> Samples:
    answer = api.get("/metrics", headers={"accept": TEXT})
    assert answer.status_code == 200, answer.text
    return parse_samples(answer.text)


def collect_samples(metrics: Metrics) -> Samples:
    """The metrics that a process without a server would report."""
    text_of = make_prometheus_renderer(lambda: metrics)
    assert text_of is not None
    return parse_samples(text_of(PLAIN_MEDIA_TYPE)[0].decode())


def sample_value(samples: Samples, name: str, **labels: str) -> float:
    """The value of a sample, or zero if there is no such sample yet."""
    return samples.get((name, frozenset(labels.items())), 0)
