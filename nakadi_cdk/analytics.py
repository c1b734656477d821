"""What is made of the archive: jobs on Glue that measure, compact and forget, each with its own role and schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aws_cdk import Aws
from aws_cdk import aws_athena as athena
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_glue as glue
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lakeformation as lakeformation
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk import aws_sns as sns
from constructs import Construct

from nakadi_cdk.assets import COMPILED, DEPENDENCIES, JOBS, PACKAGE, assets
from nakadi_cdk.context import Context
from nakadi_cdk.data import FOUND, SPARK_LOGS, Data
from nakadi_cdk.permissions import LIST_VERSIONS, PERMISSIONS, REMOVE_VERSIONS

# Spark 3.5 and Python 3.11, as in the tests; what comes after has no Iceberg that could be tested with.
GLUE = "5.1"
WORKER = "G.1X"
LONGEST_MINUTES = 180

# A quarter of the other, for jobs that run all the time.
STREAMING_WORKER = "G.025X"
RESTARTED = "Sun:3"
HOURS_OF_A_DAY = 24

# Each module of a job is a script of its own too, and imports the others from the zip beside it.
SCRIPTS = JOBS / "nakadi_jobs"

# A query of the workgroup that would read more than a terabyte ends.
MOST_SCANNED = 10**12

IN_GLUE = (
    "glue:CreateDatabase",
    "glue:CreateTable",
    "glue:DeleteTable",
    "glue:GetDatabase",
    "glue:GetTable",
    "glue:GetTables",
    "glue:UpdateTable",
)

IN_TABLE_BUCKET = (
    "s3tables:CreateNamespace",
    "s3tables:CreateTable",
    "s3tables:DeleteTable",
    "s3tables:GetNamespace",
    "s3tables:GetTable",
    "s3tables:GetTableBucket",
    "s3tables:GetTableData",
    "s3tables:GetTableMetadataLocation",
    "s3tables:ListNamespaces",
    "s3tables:ListTables",
    "s3tables:PutTableData",
    "s3tables:UpdateTableMetadataLocation",
)

# What the package needs beside Spark, in the versions that functions have.
MODULES = ("google-re2", "msgspec", "orjson", "pynamodb", "pyyaml", "zstandard")
# Statistics read data files by it. Functions have no use for it, and it is said here in the version that tests have.
PYARROW = "pyarrow==26.0.1"
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A module of `nakadi_jobs`, started by the clock, or by housekeeping when there is news; so many times at once."""

    name: str
    what: str
    schedule: str = ""  # started by housekeeping, if nothing is said
    streams: bool = False
    at_once: int = 1
    erases: bool = False  # it removes old versions of objects
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Whether there is a workgroup of Athena, and whom Lake Formation lets read the tables, by their ARNs."""

    athena: bool = False
    readers: tuple[str, ...] = ()


def jobs(data: Data, *, context: Context) -> tuple[Job, ...]:
    return (
        Job(
            name="statistics",
            what="Measures event types, and recommends partitions",
            schedule="cron(15 1 * * ? *)",
            arguments={"--max-partitions": str(context.chosen.max_partitions), "--plots": f"{data.tables_url}/plots"},
        ),
        _table_job(context),
        Job(
            name="retention",
            what="Removes what is past its retention time",
            schedule="cron(30 2 * * ? *)",
            # An erasure is not refused because events expire at that time: the two keep out of each other's way.
            at_once=5,
            erases=True,
            arguments={"--do": "expire", "--event-log": data.settings["event_log"]},
        ),
    )


def _table_job(context: Context) -> Job:
    arguments = {"--keep-days": str(context.table_days)}
    if context.table_stream:
        what = "Adds what is archived to tables for queries, within moments"
        return Job(name="follow", what=what, streams=True, arguments=arguments)
    return Job(
        name="compaction",
        what="Merges the archive into tables for queries",
        schedule="" if context.table_minutes else f"cron(5 {_hours(context.compaction_hours)} * * ? *)",
        arguments=arguments,
    )


def _hours(every: int) -> str:
    """A step as large as its range would be no step."""
    return "0" if every == HOURS_OF_A_DAY else f"0/{every}"


class Analytics(Construct):
    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        data: Data,
        jobs: tuple[Job, ...],
        workers: int,
        alarms: sns.ITopic,
        queries: Queries,
    ) -> None:
        super().__init__(scope, name)
        self._data = data
        self._workers = workers
        self._database = database_name(data.prefix)
        self._packages = [
            s3_assets.Asset(self, name, path=str(assets() / folder), exclude=COMPILED)
            for name, folder in (("Package", PACKAGE), ("Jobs", JOBS))
        ]
        self.jobs = {job.name: self._job(job) for job in jobs}
        self._tell_of_failures(alarms)
        if queries.athena:
            self._workgroup()
        if queries.readers:
            self._grants(queries.readers)

    def _job(self, job: Job) -> glue.CfnJob:
        script = s3_assets.Asset(self, f"Script-{job.name}", path=str(assets() / SCRIPTS / f"{job.name}.py"))
        full_name = f"{self._data.prefix}-{job.name}"
        role = iam.Role(self, f"Role-{job.name}", assumed_by=iam.ServicePrincipal("glue.amazonaws.com"))
        for statement in (*PERMISSIONS[job.name].statements(self._data), *self._statements(job, script)):
            role.add_to_policy(statement)
        made = glue.CfnJob(
            self,
            job.name,
            name=full_name,
            description=job.what,
            role=role.role_arn,
            glue_version=GLUE,
            command=glue.CfnJob.JobCommandProperty(
                name="gluestreaming" if job.streams else "glueetl",
                python_version="3",
                script_location=script.s3_object_url,
            ),
            **self._kind(job),
            number_of_workers=self._workers,
            execution_property=glue.CfnJob.ExecutionPropertyProperty(max_concurrent_runs=job.at_once),
            default_arguments={**self._arguments(job), **job.arguments},
        )
        made.node.add_dependency(role)
        if job.schedule:
            glue.CfnTrigger(
                self,
                f"When-{job.name}",
                name=full_name,
                type="SCHEDULED",
                schedule=job.schedule,
                start_on_creation=True,
                actions=[glue.CfnTrigger.ActionProperty(job_name=made.ref)],
            )
        return made

    def _kind(self, job: Job) -> dict[str, Any]:
        """How a job runs. One that runs all the time has small workers, and is started again once a week by Glue, for
        no run of it is longer; housekeeping starts it when it has failed."""
        if job.streams:
            return {"worker_type": STREAMING_WORKER, "maintenance_window": RESTARTED, "max_retries": 0}
        # What is left over elsewhere is cheaper, and can be waited for.
        return {
            "execution_class": "FLEX",
            "worker_type": WORKER,
            "timeout": LONGEST_MINUTES,
            # Spark repeats a task that failed. A run that found something to look at would find, and cost, it twice.
            "max_retries": 0,
        }

    def _arguments(self, job: Job) -> Mapping[str, str]:
        places = self._data.settings
        return {
            "--datalake-formats": "iceberg",
            "--extra-py-files": ",".join(each.s3_object_url for each in self._packages),
            "--additional-python-modules": ",".join([*pinned(MODULES), PYARROW]),
            # Workers of a quarter cannot be scaled, and two of them are few.
            **({} if job.streams else {"--enable-auto-scaling": "true"}),
            "--enable-metrics": "true",
            "--enable-continuous-cloudwatch-log": "true",
            "--enable-spark-ui": "true",
            "--spark-event-logs-path": f"{self._data.tables_url}/{SPARK_LOGS}{job.name}/",
            "--registry": places["registry"],
            "--log-index": places["log_index"],
            "--archive": places["archive"],
            "--tables": f"{self._data.tables_url}/tables",
            "--report": f"{self._data.tables_url}/reports/{job.name}",
            **self._catalog(),
            "--database": self._database,
        }

    def _catalog(self) -> Mapping[str, str]:
        if self._data.has_table_bucket:
            return {"--catalog": "s3tables", "--warehouse": self._data.table_bucket_arn}
        return {"--catalog": "glue"}

    def _in_catalog(self) -> iam.PolicyStatement:
        """What jobs do with tables where these are listed."""
        if self._data.has_table_bucket:
            bucket = self._data.table_bucket_arn
            return iam.PolicyStatement(actions=list(IN_TABLE_BUCKET), resources=[bucket, f"{bucket}/table/*"])
        return iam.PolicyStatement(
            actions=list(IN_GLUE),
            resources=[
                _arn("glue", "catalog"),
                _arn("glue", f"database/{self._database}"),
                _arn("glue", f"table/{self._database}/*"),
            ],
        )

    def _statements(self, job: Job, script: s3_assets.Asset) -> Iterator[iam.PolicyStatement]:
        assets = [each.bucket.arn_for_objects(each.s3_object_key) for each in (script, *self._packages)]
        yield iam.PolicyStatement(actions=["s3:GetObject"], resources=assets)
        yield iam.PolicyStatement(
            actions=[
                *("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"),
                *(REMOVE_VERSIONS if job.erases else ()),
            ],
            resources=[f"{self._data.tables_arn}/*"],
        )
        listing = ["s3:ListBucket", *([LIST_VERSIONS] if job.erases else [])]
        yield iam.PolicyStatement(actions=listing, resources=[self._data.tables_arn])
        yield self._in_catalog()
        yield iam.PolicyStatement(
            actions=["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"],
            resources=[_arn("logs", "log-group:/aws-glue/*")],
        )
        yield iam.PolicyStatement(
            actions=["cloudwatch:PutMetricData"],
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": "Glue"}},
        )

    def _workgroup(self) -> None:
        """Where people ask: what they find goes below a prefix of the tables' bucket, where it stays for a month."""
        key = self._data.key
        encryption = athena.CfnWorkGroup.EncryptionConfigurationProperty(
            encryption_option="SSE_KMS" if key else "SSE_S3", kms_key=key.key_arn if key else None
        )
        athena.CfnWorkGroup(
            self,
            "Workgroup",
            name=self._data.prefix,
            description=f"Queries of the tables in {self._database}",
            # What was found goes with the stack; what was asked of is not touched.
            recursive_delete_option=True,
            work_group_configuration=athena.CfnWorkGroup.WorkGroupConfigurationProperty(
                enforce_work_group_configuration=True,
                engine_version=athena.CfnWorkGroup.EngineVersionProperty(
                    selected_engine_version="Athena engine version 3"
                ),
                bytes_scanned_cutoff_per_query=MOST_SCANNED,
                publish_cloud_watch_metrics_enabled=False,
                result_configuration=athena.CfnWorkGroup.ResultConfigurationProperty(
                    output_location=f"{self._data.tables_url}/{FOUND}", encryption_configuration=encryption
                ),
            ),
        )

    def _grants(self, readers: Sequence[str]) -> None:
        """Jobs do what they do by IAM, as long as the account has not given that up for Lake Formation."""
        catalog = Aws.ACCOUNT_ID
        database = lakeformation.CfnPrincipalPermissions.ResourceProperty(
            database=lakeformation.CfnPrincipalPermissions.DatabaseResourceProperty(
                catalog_id=catalog, name=self._database
            )
        )
        tables = lakeformation.CfnPrincipalPermissions.ResourceProperty(
            table=lakeformation.CfnPrincipalPermissions.TableResourceProperty(
                catalog_id=catalog, database_name=self._database, table_wildcard={}
            )
        )
        for number, reader in enumerate(readers):
            for what, resource, permissions in (
                ("Database", database, ["DESCRIBE"]),
                ("Tables", tables, ["DESCRIBE", "SELECT"]),
            ):
                lakeformation.CfnPrincipalPermissions(
                    self,
                    f"Reader{number}{what}",
                    catalog=catalog,
                    principal=lakeformation.CfnPrincipalPermissions.DataLakePrincipalProperty(
                        data_lake_principal_identifier=reader
                    ),
                    resource=resource,
                    permissions=permissions,
                    permissions_with_grant_option=[],
                )

    def _tell_of_failures(self, topic: sns.ITopic) -> None:
        """A job that found something for people to look at fails as well."""
        events.Rule(
            self,
            "JobFailed",
            description="A job on the archive failed, or found something to look at",
            event_pattern=events.EventPattern(
                source=["aws.glue"],
                detail_type=["Glue Job State Change"],
                detail={
                    "jobName": [f"{self._data.prefix}-{name}" for name in self.jobs],
                    "state": ["ERROR", "FAILED", "TIMEOUT"],
                },
            ),
            targets=[targets.SnsTopic(topic)],
        )


def pinned(modules: tuple[str, ...]) -> list[str]:
    pins = dict(PIN.findall((assets() / DEPENDENCIES / "requirements.txt").read_text()))
    return [f"{name}=={pins[name]}" for name in modules]


def database_name(prefix: str) -> str:
    """Made by the first job that needs it, so that it does not go when the jobs go."""
    return prefix.replace("-", "_")


def _arn(service: str, resource: str) -> str:
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"
