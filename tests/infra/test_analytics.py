"""The jobs on the archive."""

from importlib import import_module

import pytest

from nakadi_jobs.__main__ import JOBS
from tests.support.functions import ROOT
from tests.support.templates import text

NAMES = ("statistics", "compaction", "retention")


@pytest.fixture(scope="session")
def jobs(analytics):
    return {each["Name"].removeprefix("nakadi-test-"): each for each in analytics.all("AWS::Glue::Job").values()}


def arguments(job):
    return {name: text(value) for name, value in job["DefaultArguments"].items()}


def test_there_is_a_job_for_each_script(jobs):
    """Every job that the package can run is deployed, and its module is there."""
    assert set(jobs) == set(JOBS) == set(NAMES)
    assert all((ROOT / "glue_jobs" / "nakadi_jobs" / f"{name}.py").exists() for name in JOBS)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_understands_what_it_is_given(jobs, name):
    """The arguments of a job are those that its script knows, and lead to what the data stack made."""
    script = import_module(f"nakadi_jobs.{name}")
    given = [part for pair in arguments(jobs[name]).items() for part in pair]
    known = script._options([*given, "--JOB_NAME", f"nakadi-test-{name}"])

    assert known.registry == known.log_index == "dynamodb://nakadi-test?region=eu-central-1"
    assert known.archive == "s3://nakadi-test-archive-123456789012-eu-central-1/?region=eu-central-1"
    assert known.tables == "s3://nakadi-test-tables-123456789012-eu-central-1/tables"
    assert (known.catalog, known.database) == ("glue", "nakadi_test")


@pytest.mark.parametrize("name", NAMES)
def test_a_job_runs_where_it_was_tested(jobs, name):
    """Spark 3.5 on Python 3.11, with modules in the versions that functions have, one run at a time, not for ever."""
    job, given = jobs[name], arguments(jobs[name])

    assert (job["GlueVersion"], job["WorkerType"], job["NumberOfWorkers"]) == ("5.1", "G.1X", 2)
    assert given["--datalake-formats"] == "iceberg"
    assert all("==" in each for each in given["--additional-python-modules"].split(","))
    assert job["ExecutionProperty"] == {"MaxConcurrentRuns": 1}
    assert (job["Timeout"], job["MaxRetries"]) == (180, 1)


def test_the_package_comes_with_the_job(analytics, jobs):
    """The zips beside the script have the packages at their root, so that they can be imported from them."""
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
