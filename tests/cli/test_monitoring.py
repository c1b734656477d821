"""The alert rules and the dashboard that `nakadi doctor --write-rules` writes."""

import json
import re
import shutil
import subprocess
from itertools import combinations

import httpx
import pytest
import yaml

from nakadi.common.metrics import Metrics
from nakadi_cli.monitoring.alerts import ALERTS
from nakadi_cli.monitoring.grafana import dashboard, queries
from tests.support.alert_series import EVALUATED_AT_MINUTE, SERIES, history_of
from tests.support.environment import plain_environment
from tests.support.metrics import PROMETHEUS, TEXT
from tests.support.patience import PATIENCE
from tests.support.promql import evaluate, selected_names
from tests.support.served import ServedBroker

RULES = "nakadi-alerts.yaml"
OF_PROMETHEUS = {"up": {"job", "instance"}}
"""The samples that Prometheus itself adds for each target."""

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@pytest.fixture(scope="module")
def read_metrics():
    """A function that reads a broker's metrics over HTTP, in the format that the client accepts."""
    with ServedBroker() as broker:
        yield lambda accept: httpx.get(f"{broker.url}/metrics", headers={"accept": accept}, timeout=PATIENCE).text


@pytest.fixture(scope="module")
def exposed_labels(read_metrics):
    """The labels of each sample that a broker reports, including samples of metrics that nothing has counted yet."""
    text = read_metrics(PROMETHEUS)
    families = set(re.findall(r"^# TYPE (nakadi_\w+) ", text, re.MULTILINE))
    samples = dict(OF_PROMETHEUS)
    for metric in Metrics().all:
        definition = metric.definition
        assert definition.name.removesuffix("_total") in families
        labels = set(definition.labels)
        samples[definition.name] = labels
        if metric.kind == "histogram":
            samples |= {f"{definition.name}_bucket": labels | {"le"}, f"{definition.name}_count": labels}
    return samples


@pytest.fixture
def folder(run, tmp_path):
    assert run("doctor", "--write-rules", str(tmp_path / "rules"), url="http://127.0.0.1:9").code == 0
    return tmp_path / "rules"


def run_promtool(*arguments, **options):
    done = subprocess.run(
        ["promtool", *arguments], env=plain_environment(), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_a_dashboard_are_written_without_a_broker(folder):
    """The command creates the folder with both files, and needs no broker."""
    [group] = yaml.safe_load((folder / RULES).read_text())["groups"]

    assert [each["alert"] for each in group["rules"]] == [each.name for each in ALERTS]
    assert json.loads((folder / "nakadi-dashboard.json").read_text())["title"] == "Nakadi"


def test_a_folder_that_cannot_be_written_is_refused(run, tmp_path):
    """A folder below a file is refused, with exit code 2."""
    (tmp_path / "file").write_text("")
    done = run("doctor", "--write-rules", str(tmp_path / "file" / "rules"))

    assert done.code == 2
    assert "cannot be written" in done.err


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_names_metrics_that_a_broker_has(alert, exposed_labels):
    """Each sample in an expression is reported over HTTP, with the labels by which it is selected and grouped."""
    for name, labels in selected_names(alert.expression).items():
        assert labels <= exposed_labels[name], name


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_when_it_should(alert):
    """An alert fires for series that indicate a problem, with the labels that its texts name, and for no others."""
    series = SERIES[alert.name]
    [labels] = evaluate(alert.expression, history_of(series.firing))

    assert dict(labels) == series.labels
    assert evaluate(alert.expression, history_of(series.quiet)) == {}
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.action)) <= set(series.labels)


@pytest.mark.parametrize("metric", Metrics().all, ids=lambda metric: metric.definition.name)
def test_a_panel_names_metrics_that_a_broker_has(metric, exposed_labels):
    """The queries of a metric's panel can be parsed, and name a sample of the metric and exactly its labels."""
    for expression, _ in queries(metric):
        [[name, labels]] = selected_names(expression.replace("$__rate_interval", "5m")).items()
        assert name.startswith(metric.definition.name)
        assert labels == exposed_labels[name]


def test_the_dashboard_has_a_panel_for_each_metric():
    """Panels have the order and the groups of the list of metrics, have unique numbers, and do not overlap."""
    panels = json.loads(dashboard())["panels"]
    shown = [each["description"] for each in panels if each["type"] == "timeseries"]
    rows = [each["title"] for each in panels if each["type"] == "row"]

    assert shown == [each.definition.meaning for each in Metrics().all]
    assert rows == list(dict.fromkeys(each.definition.group for each in Metrics().all))
    assert len({each["id"] for each in panels}) == len(panels)
    places = [each["gridPos"] for each in panels]
    assert all(each["x"] + each["w"] <= 24 for each in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


# Checks with Prometheus's own tool


@promtool
def test_prometheus_accepts_the_rules(folder):
    """`promtool check rules` finds nothing wrong."""
    run_promtool("check", "rules", str(folder / RULES))


@promtool
def test_prometheus_accepts_the_metrics(read_metrics):
    """`promtool check metrics` finds no error in what a broker reports."""
    text = read_metrics(TEXT)
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, env=plain_environment(), input=text, capture_output=True, text=True, check=False)
    # The exit code 3 means advice about names; following it would break the queries of users.
    assert done.returncode in (0, 3), done.stderr
    assert "error" not in done.stderr.lower()


@promtool
def test_prometheus_fires_each_alert(folder):
    """`promtool test rules` agrees which series make each alert fire."""
    tests = [each for alert in ALERTS for each in (a_rule_test(alert, firing=True), a_rule_test(alert, firing=False))]
    file = {"rule_files": [RULES], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(file))

    run_promtool("test", "rules", "tests.yaml", cwd=folder)


def a_rule_test(alert, *, firing):
    series = SERIES[alert.name]

    def render(text):
        labelled = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: series.labels[found[1]], text)
        return labelled.replace("{{ $value }}", series.value)

    expected = {
        "exp_labels": {**series.labels, "severity": alert.severity},
        "exp_annotations": {
            "summary": render(alert.summary),
            "description": render(alert.action),
            "runbook": alert.page,
        },
    }
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in (series.firing if firing else series.quiet).items()
        ],
        "alert_rule_test": [
            {
                "eval_time": f"{EVALUATED_AT_MINUTE}m",
                "alertname": alert.name,
                "exp_alerts": [expected] if firing else [],
            }
        ],
    }
