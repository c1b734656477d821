"""Alarms and the dashboard."""

import json
import re
from pathlib import Path

import pytest

from nakadi_cdk.needs import NEEDS
from tests.support.templates import as_list, text

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
ROW = re.compile(r"^\| `([A-Z][a-z]\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)

ALARMS = {
    "ApiFails",
    "AuthorizerFails",
    "AuthorizerIsThrottled",
    "BatchesAreLost",
    "EventsAreNotIndexed",
    "EventsWereLost",
    "FunctionsAreThrottled",
    "HousekeepingFails",
    "IndexerFails",
    "IndexerIsAway",
    "IndexerIsLate",
    "NoStreamingTask",
    "ReadsAreThrottled",
    "RecordsAreSetAside",
    "StreamingFails",
    "StreamingIsFull",
    "SubscriptionsAreStalled",
    "TablesAreThrottled",
    "WritesAreThrottled",
}

MORE = {
    "ArchiveCannotBeRead",
    "ArchiveIsDamaged",
    "PublishingIsRefused",
    "RegistryIsSlow",
    "SubscriptionsMissObjectives",
}
"""The additional alarms with `more_alarms`."""

OF_BROKERS = {"DisksAreFull", "PartitionsAreOffline", "TooFewCopies"}
"""The additional alarms if events are in an MSK cluster with brokers."""

# Alarms of each stream: those of the stream `orders` have its name after their own.
OF_A_STREAM = {"IndexerIsAway", "ReadsAreThrottled", "WritesAreThrottled"}


@pytest.fixture(scope="session")
def alarms(serving):
    return {
        each["AlarmName"].removeprefix("nakadi-test-"): each for each in serving.all("AWS::CloudWatch::Alarm").values()
    }


@pytest.fixture(scope="session")
def additional_alarms(large_deployment):
    named = {each["AlarmName"]: each for each in large_deployment.serving.all("AWS::CloudWatch::Alarm").values()}
    return {name: named[f"nakadi-test-{name}"] for name in MORE}


def test_what_has_to_wake_someone_does(alarms):
    """By default, a deployment has the alarms in the list above, and no others."""
    assert set(alarms) == ALARMS | {f"{name}-orders" for name in OF_A_STREAM}


@pytest.mark.parametrize("name", sorted(ALARMS))
def test_an_alarm_is_sent_to_someone(serving, alarms, name):
    """An alarm describes the fault in a sentence, and is sent to the topic, also when it ends."""
    [topic] = serving.all("AWS::SNS::Topic")

    assert alarms[name]["AlarmDescription"]
    assert alarms[name]["AlarmActions"] == alarms[name]["OKActions"] == [{"Ref": topic}]


def test_every_alarm_is_explained():
    """docs/operations.md explains each alarm and its remedy, and no others."""
    explained = {name: (means, act) for name, means, act in ROW.findall(OPERATIONS.read_text())}

    of_options = {"JobFailed", "DirectRequestsFail", "TablesAreLate", "TablesAreSlow", "TablesAreWrong"}
    of_options |= {"TablesMissObjectives"}
    assert set(explained) - of_options == ALARMS | MORE | OF_BROKERS
    assert "JobFailed" in explained


def test_alarms_may_be_sent_to_their_topic(serving):
    """The topic's policy allows alarms to be sent: a policy of its own replaces the usual one, which would allow
    CloudWatch.
    """
    statements = serving.one("AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    allowed = [
        (service, action)
        for each in statements
        if each["Effect"] == "Allow"
        for service in as_list(each["Principal"]["Service"])
        for action in as_list(each["Action"])
    ]

    assert ("cloudwatch.amazonaws.com", "sns:Publish") in allowed
    assert serving.one("AWS::SNS::Subscription")["Endpoint"] == "somebody@example.org"


def test_silence_is_bad_only_where_there_should_be_a_sound(alarms):
    """Missing values mean that nothing happened, except for metrics that are always reported: of tasks, and of waiting
    events.
    """
    breaching = {name for name, each in alarms.items() if each["TreatMissingData"] == "breaching"}

    assert breaching == {"NoStreamingTask", "EventsAreNotIndexed"}


def test_an_indexer_that_is_not_invoked_raises_an_alarm(alarms):
    """The alarm fires if records come in without an invocation of the indexer, because a disabled mapping has no
    iterator age.
    """
    streams = set()
    for suffix in ("", "-orders"):
        metrics = {each["Id"]: each for each in alarms[f"IndexerIsAway{suffix}"]["Metrics"]}
        [math] = [each["Expression"] for each in metrics.values() if "Expression" in each]

        assert math == "IF(FILL(records, 0) > 0 AND FILL(invocations, 0) == 0, 1, 0)"
        assert metrics["records"]["MetricStat"]["Metric"]["MetricName"] == "IncomingRecords"
        assert metrics["invocations"]["MetricStat"]["Metric"]["MetricName"] == "Invocations"
        streams |= {text(each["Value"]) for each in metrics["records"]["MetricStat"]["Metric"]["Dimensions"]}
    assert len(streams) == 2


def test_an_alarm_takes_no_more_metrics_than_it_may(large_deployment):
    """Ten separate streams can be deployed: every stream has its alarms, and no alarm more than ten metrics."""
    metrics = [
        len(each.get("Metrics", [None])) for each in large_deployment.serving.all("AWS::CloudWatch::Alarm").values()
    ]

    assert max(metrics) <= 10


def test_own_metrics_are_those_that_are_reported(serving, alarms):
    """The metrics that alarms read in the stage's namespace have the names and dimensions that its functions report."""
    own = {
        name: (each["MetricName"], {one["Name"]: text(one["Value"]) for one in each["Dimensions"]})
        for name, each in alarms.items()
        if each.get("Namespace") == "nakadi-test"
    }
    told = {serving.environment(name)["POWERTOOLS_METRICS_NAMESPACE"] for name in NEEDS}

    assert told == {"nakadi-test"}
    assert own == {
        "RecordsAreSetAside": ("SetAside", {"service": "log_indexer"}),
        "AuthorizerFails": ("Faults", {"service": "authorizer"}),
        "EventsAreNotIndexed": ("IndexLag", {"service": "housekeeping"}),
        "EventsWereLost": ("GapsFound", {"service": "housekeeping"}),
        "SubscriptionsAreStalled": ("StalledSubscriptions", {"service": "housekeeping"}),
    }


def test_missed_objectives_raise_an_alarm(additional_alarms):
    """Housekeeping reports the burn rate of a subscription that lasts over both windows. (O12)"""
    alarm = additional_alarms["SubscriptionsMissObjectives"]
    assert (alarm["MetricName"], alarm["Statistic"], alarm["Threshold"]) == ("SubscriptionBurnRate", "Maximum", 6)
    assert [text(each["Value"]) for each in alarm["Dimensions"]] == ["housekeeping"]


def test_publishers_that_are_refused_raise_an_alarm(additional_alarms):
    """The alarm is raised if a tenth of at least twenty requests in five minutes are refused, as the publishing
    function counts them.
    """
    alarm = additional_alarms["PublishingIsRefused"]
    metrics = {each["Id"]: each for each in alarm["Metrics"]}
    [math] = [each["Expression"] for each in metrics.values() if "Expression" in each]

    assert (math, alarm["Threshold"]) == ("IF(FILL(answers, 0) >= 20, FILL(refusals, 0) / answers, 0)", 0.1)
    counted = [metrics[name]["MetricStat"]["Metric"] for name in ("answers", "refusals")]
    assert [each["MetricName"] for each in counted] == ["Answers", "Refusals"]
    assert {(each["Namespace"], text(each["Dimensions"][0]["Value"])) for each in counted} == {
        ("nakadi-test", "publish")
    }


def test_a_slow_registry_raises_an_alarm(additional_alarms):
    """The alarm uses DynamoDB's own measurement of how long it takes to read a document."""
    alarm = additional_alarms["RegistryIsSlow"]
    dimensions = {each["Name"]: text(each["Value"]) for each in alarm["Dimensions"]}

    assert (alarm["Namespace"], alarm["MetricName"]) == ("AWS/DynamoDB", "SuccessfulRequestLatency")
    assert (alarm["Statistic"], alarm["Threshold"], alarm["EvaluationPeriods"]) == ("Average", 100, 5)
    assert dimensions["Operation"] == "GetItem"
    assert "documents" in dimensions["TableName"]


def test_a_damaged_archive_raises_an_alarm(large_deployment, additional_alarms):
    """The tasks report damage in the archive under the name that the deployment gives them."""
    alarm = additional_alarms["ArchiveIsDamaged"]
    [container] = large_deployment.serving.one("AWS::ECS::TaskDefinition")["ContainerDefinitions"]
    command = [text(each) for each in container["Command"]]

    assert (alarm["Namespace"], alarm["MetricName"], alarm["Statistic"]) == ("Nakadi", "ArchiveUnreadable", "Sum")
    assert text(alarm["Dimensions"][0]["Value"]) == command[command.index("--name") + 1]


def test_failed_reads_of_the_archive_raise_an_alarm(additional_alarms):
    """A single failed read of the archive raises no alarm, because the tasks try again."""
    alarm = additional_alarms["ArchiveCannotBeRead"]

    assert (alarm["Namespace"], alarm["MetricName"], alarm["Statistic"]) == ("Nakadi", "ArchiveReadFailures", "Sum")
    assert (alarm["Threshold"], alarm["EvaluationPeriods"]) == (1, 3)


def test_a_stage_that_sleeps_has_no_alarms_on_streams(sleeping_deployment):
    """A stage that sleeps has no alarms on the resources that it lacks."""
    names = {
        each["AlarmName"].removeprefix("nakadi-test-")
        for each in sleeping_deployment.serving.all("AWS::CloudWatch::Alarm").values()
    }

    assert {name for name in ALARMS if name not in names} == {
        "NoStreamingTask",
        "StreamingFails",
        "StreamingIsFull",
    }


def test_the_dashboard_shows_everything_on_one_page(serving, large_deployment):
    """The dashboard, if requested, shows the alarms and every function."""
    assert not serving.all("AWS::CloudWatch::Dashboard")
    [dashboard] = large_deployment.serving.all("AWS::CloudWatch::Dashboard").values()
    body = json.loads(text(dashboard["DashboardBody"]))

    assert dashboard["DashboardName"] == "nakadi-test"
    # One alarm of direct requests, and four of tables.
    assert len(body["widgets"][0]["properties"]["alarms"]) == len(ALARMS) + len(MORE) + 10 * len(OF_A_STREAM) + 5
    functions = {
        name for name in large_deployment.serving.all("AWS::Lambda::Function") if f"<{name}>" in json.dumps(body)
    }
    assert len(functions) == len(NEEDS)
