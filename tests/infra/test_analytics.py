"""The jobs on the archive."""

from importlib import import_module

import pytest

from nakadi.app.settings import Settings
from nakadi_cdk.context import Context
from nakadi_cdk.settings import function_environment
from nakadi_jobs import follow
from nakadi_jobs.__main__ import FOLLOW, JOBS
from tests.support.functions import ROOT
from tests.support.templates import text

PLACES = dict.fromkeys(("event_log", "registry", "log_index", "coordination"), "memory:") | {"archive": ""}

NAMES = ("statistics", "compaction", "retention")


@pytest.fixture(scope="session")
def jobs(analytics):
    return {each["Name"].removeprefix("nakadi-test-"): each for each in analytics.all("AWS::Glue::Job").values()}


def arguments(job):
    return {name: text(value) for name, value in job["DefaultArguments"].items()}


def test_there_is_a_job_for_each_script(jobs):
    """Every job of the package is deployed, and its module exists."""
    assert set(jobs) == set(JOBS) == set(NAMES)
    assert all((ROOT / "glue_jobs" / "nakadi_jobs" / f"{name}.py").exists() for name in JOBS)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_understands_what_it_is_given(jobs, name):
    """The script knows the arguments of a job, which lead to resources of the data stack."""
    script = import_module(f"nakadi_jobs.{name}")
    given = [part for pair in arguments(jobs[name]).items() for part in pair]
    known = script._options([*given, "--JOB_NAME", f"nakadi-test-{name}"])

    assert known.registry == known.log_index == "dynamodb://nakadi-test?region=eu-central-1"
    assert known.archive == "s3://nakadi-test-archive-123456789012-eu-central-1/?region=eu-central-1"
    assert known.tables == "s3://nakadi-test-tables-123456789012-eu-central-1/tables"
    assert (known.catalog, known.database) == ("glue", "nakadi_test")


@pytest.mark.parametrize("name", NAMES)
def test_a_job_runs_where_it_was_tested(jobs, name):
    """Jobs run Spark 3.5 on Python 3.11, with the functions' versions of modules, for a limited time, and never twice
    at once.

    Only erasures may begin while retention runs."""
    job, given = jobs[name], arguments(jobs[name])

    assert (job["GlueVersion"], job["WorkerType"], job["NumberOfWorkers"]) == ("5.1", "G.1X", 2)
    assert given["--datalake-formats"] == "iceberg"
    modules = given["--additional-python-modules"].split(",")
    assert all("==" in each for each in modules)
    assert next(each for each in modules if each.startswith("pyarrow")) in (ROOT / "requirements/test.txt").read_text()
    assert job["ExecutionProperty"] == {"MaxConcurrentRuns": 5 if name == "retention" else 1}
    assert (job["Timeout"], job["MaxRetries"]) == (180, 0)
    logs = f"s3://nakadi-test-tables-123456789012-eu-central-1/spark-logs/{name}/"
    assert (given["--enable-spark-ui"], given["--spark-event-logs-path"]) == ("true", logs)


def test_the_package_comes_with_the_job(analytics, jobs):
    """The zips beside the script have the packages at their root, so that jobs can import the packages from
    the zips.
    """
    [urls] = {arguments(job)["--extra-py-files"] for job in jobs.values()}
    digests = [url.rpartition("/")[2].removesuffix(".zip") for url in urls.split(",")]
    folders = [analytics.path.parent / f"asset.{digest}" for digest in digests]

    packages = {path.parent.name for folder in folders for path in folder.glob("*/__init__.py")}
    assert packages == {"nakadi", "nakadi_jobs"}


def test_jobs_are_started_by_the_clock(analytics):
    """Every job has a trigger, which is on from the beginning."""
    triggers = analytics.all("AWS::Glue::Trigger").values()

    assert {each["Name"].removeprefix("nakadi-test-"): each["Schedule"] for each in triggers} == {
        "statistics": "cron(15 1 * * ? *)",
        "compaction": "cron(5 0 * * ? *)",
        "retention": "cron(30 2 * * ? *)",
    }
    assert all(each["StartOnCreation"] is True for each in triggers)


def test_a_job_that_follows_runs_all_the_time_and_is_started_by_housekeeping(large_deployment):
    """With `table_stream` a streaming job on small workers takes the place of the one on a schedule. Only
    housekeeping may start it, because it knows when events wait; Glue restarts it each week, and no time limit ends
    it."""
    jobs = {
        each["Name"].removeprefix("nakadi-test-"): each
        for each in large_deployment.analytics.all("AWS::Glue::Job").values()
    }
    job = jobs[FOLLOW]
    given = [part for pair in arguments(job).items() for part in pair]

    assert set(jobs) == {"statistics", "retention", FOLLOW}
    assert (job["Command"]["Name"], job["WorkerType"], job["NumberOfWorkers"]) == ("gluestreaming", "G.025X", 2)
    assert (job["MaintenanceWindow"], job["MaxRetries"], job["ExecutionProperty"]) == (
        "Sun:3",
        0,
        {"MaxConcurrentRuns": 1},
    )
    assert {"Timeout", "ExecutionClass"}.isdisjoint(job)
    assert follow._options([*given, "--JOB_NAME", "nakadi-test-follow"]).catalog == "glue"
    triggers = {each["Name"] for each in large_deployment.analytics.all("AWS::Glue::Trigger").values()}
    assert triggers == {"nakadi-test-statistics", "nakadi-test-retention"}
    environment = large_deployment.serving.environment("housekeeping")
    told = {name: text(environment[f"NAKADI_{name.upper()}"]) for name in ("table_job", "table_minutes")}
    assert told == {"table_job": "nakadi-test-follow", "table_minutes": "10"}
    alarms = {each["AlarmName"]: each for each in large_deployment.serving.all("AWS::CloudWatch::Alarm").values()}
    for name, metric in (("TablesAreLate", "TableLag"), ("TablesAreSlow", "TableLatency")):
        alarm = alarms[f"nakadi-test-{name}"]
        assert (alarm["MetricName"], alarm["Threshold"]) == (metric, 2 * 10 * 60 + 3600)
        assert (alarm["Statistic"], text(alarm["Dimensions"][0]["Value"])) == ("Maximum", "housekeeping")
    assert alarms["nakadi-test-TablesAreWrong"]["MetricName"] == "TableDefects"
    missed = {each["Id"]: each for each in alarms["nakadi-test-TablesMissObjectives"]["Metrics"]}
    [math] = [each["Expression"] for each in missed.values() if "Expression" in each]
    assert math == "MAX([FILL(burned, 0) / 6, FILL(pressure, 0)])"
    names = [missed[name]["MetricStat"]["Metric"]["MetricName"] for name in ("burned", "pressure")]
    assert names == ["TableBurnRate", "TablePressure"]
    starts = [
        (name, statement["Resource"])
        for name, role in large_deployment.serving.all("AWS::IAM::Role").items()
        for statement in large_deployment.serving.statements({"Ref": name})
        if "glue:StartJobRun" in statement["Action"]
    ]
    [(role, resource)] = starts
    assert role.startswith("FunctionsRolehousekeeping")
    assert text(resource).endswith(":job/nakadi-test-follow")


def test_by_news_the_same_job_has_no_schedule():
    """With only `table_minutes`, housekeeping starts the job that ends by itself; without analytics, it starts none."""
    by_news = function_environment("housekeeping", Context(table_minutes=15), PLACES)
    assert by_news["NAKADI_TABLE_JOB"] == "nakadi-dev-compaction"
    assert Settings.from_env(by_news).table_minutes == 15
    assert by_news["NAKADI_COMPACTION_WAIT_HOURS"] == "48"
    without = function_environment("housekeeping", Context(analytics=False), PLACES)
    assert without["NAKADI_COMPACTION_WAIT_HOURS"] == "0", "there is no table that compaction could wait for"
    assert Context(table_minutes=15, analytics=False).table_job == ""
    assert Context().table_job == ""
    assert Context(table_minutes=15).late_seconds == 2 * 15 * 60 + 3600


def test_someone_hears_of_a_job_that_failed(analytics, serving):
    """Failures of these jobs are sent to the topic of the alarms, which accepts them."""
    rule = analytics.one("AWS::Events::Rule")
    [allowed] = [
        each
        for each in serving.one("AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
        if each["Principal"] == {"Service": "events.amazonaws.com"}
    ]

    assert set(rule["EventPattern"]["detail"]["jobName"]) == {f"nakadi-test-{name}" for name in NAMES}
    assert set(rule["EventPattern"]["detail"]["state"]) == {"ERROR", "FAILED", "TIMEOUT"}
    assert (allowed["Effect"], allowed["Action"]) == ("Allow", "sns:Publish")
