import pytest

from nakadi_jobs import command, compaction, follow, retention, statistics


def parse_lines(*arguments):
    return command.options(command.parser("compaction", "Does it."), arguments)


def test_what_glue_adds_is_passed_over():
    """A job ignores the arguments that Glue passes to every job."""
    known = parse_lines(
        "--JOB_NAME", "nakadi-compaction", "--JOB_RUN_ID=jr_1", "--TempDir", "s3://x/y", "--enable-metrics", "true",
        "--datalake-formats", "iceberg", "--tables", "s3://tables/t",
    )  # fmt: skip
    assert known.tables == "s3://tables/t"


@pytest.mark.parametrize(
    "added",
    [
        ["--JOB_ID", "j_1"],
        ["--SECURITY_CONFIGURATION", "own-key"],
        ["--WORKFLOW_NAME", "nightly", "--WORKFLOW_RUN_ID", "wr_1"],
        ["--job-bookmark-option", "job-bookmark-disable", "--job-bookmark-from", "-1"],
        ["--job-language", "python", "--scriptLocation", "s3://x/compaction.py"],
        ["--enable-job-insights", "", "--enable-observability-metrics", "true", "--disable-proxy-v2", "true"],
        ["--conf", "spark.a=1 --conf spark.b=2", "--extra-spark-options", "-Dx=y"],
        ["--auto-scale-within-microbatch", "--use-postgres-driver", "--python-modules-installer-option", "--no-cache"],
    ],
    ids=lambda added: added[0],
)
def test_whatever_glue_adds_is_passed_over(added):
    """The arguments that Glue adds according to its documentation leave a job's own arguments unchanged, in any
    position.
    """
    for arguments in ((*added, "--database", "d"), ("--database", "d", *added)):
        assert parse_lines(*arguments).database == "d"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--tabels", "x"],
        ["x"],
        ["--JOB_NAME", "a", "b", "c"],
        ["--JOB_NAME=a", "b"],
        ["--enable-metrics", "true", "--event-type", "true"],
    ],
)
def test_a_mistake_is_reported(wrong, capsys):
    """Unknown arguments end the program before the job begins."""
    with pytest.raises(SystemExit) as ended:
        parse_lines(*wrong)
    assert ended.value.code == 2
    assert "unknown arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "wrong", "message"),
    [
        (statistics, ["--hours", "0"], "0 is below 1"),
        (statistics, ["--plot-days", "x"], "invalid int value: 'x'"),
        (statistics, ["--until", "yesterday"], "yesterday is no RFC 3339 time"),
        (statistics, ["--until", "2026-11-21T12:00:00"], "2026-11-21T12:00:00 is no RFC 3339 time"),
        (compaction, ["--at-once", "0"], "0 is below 1"),
        (compaction, ["--keep-snapshots-days", "-1"], "-1 is below 0.0"),
        (compaction, ["--orphans-after-days", "nan"], "nan is below 0.0"),
        (retention, ["--grace-hours", "-24"], "-24 is below 0.0"),
        (follow, ["--every-seconds", "-1"], "-1 is below 0.0"),
    ],
)
def test_a_wrong_number_or_time_is_reported_at_the_start(job, wrong, message, capsys):
    """No job begins with a number or a time that makes no sense, such as a period of no hours."""
    with pytest.raises(SystemExit) as ended:
        job.main(["--data", "/nowhere", *wrong])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_event_types_by_name():
    """The names of event types are separated by commas."""
    assert parse_lines("--event-types", "a.b, c.d").event_types == ("a.b", "c.d")


def test_help_explains_itself(capsys):
    """`--help` describes the job, its arguments, and the meaning of its exit codes."""
    with pytest.raises(SystemExit):
        parse_lines("--help")
    told = capsys.readouterr().out
    assert all(each in told for each in ("Does it.", "--archive", "--tables", "Exit codes", "killed"))
