"""Glue jobs on the archive: statistics, tables and retention, each with its own role and schedule."""

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

from nakadi_cdk.assets import COMPILED_FILES, DEPENDENCIES, JOBS, PACKAGE, assets_folder
from nakadi_cdk.context import Context
from nakadi_cdk.data import QUERY_RESULTS_PREFIX, SPARK_LOGS_PREFIX, Data
from nakadi_cdk.permissions import LIST_VERSIONS, PERMISSIONS, REMOVE_VERSIONS

# Spark 3.5 and Python 3.11, like the tests. Tests cannot run the Iceberg of later versions.
GLUE_VERSION = "5.1"
WORKER_TYPE = "G.1X"
TIMEOUT_MINUTES = 180

# The worker for jobs that run continuously: a quarter of a G.1X worker.
STREAMING_WORKER_TYPE = "G.025X"
MAINTENANCE_WINDOW = "Sun:3"
HOURS_PER_DAY = 24

# The module of a job is also its script; it imports the other modules from the zip beside it.
SCRIPTS = JOBS / "nakadi_jobs"

# Athena cancels a query of the workgroup that reads more than a terabyte.
MAX_SCANNED_BYTES = 10**12

GLUE_CATALOG_ACTIONS = (
    "glue:CreateDatabase",
    "glue:CreateTable",
    "glue:DeleteTable",
    "glue:GetDatabase",
    "glue:GetTable",
    "glue:GetTables",
    "glue:UpdateTable",
)

TABLE_BUCKET_ACTIONS = (
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

# The packages that jobs need beside Spark, in the versions of the functions.
PINNED_PACKAGES = ("google-re2", "msgspec", "orjson", "pynamodb", "pyyaml", "zstandard")
# Statistics read data files with this package. Functions do not use it, so its version is the one that the tests use.
PYARROW = "pyarrow==26.0.1"
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of `nakadi_jobs`: Glue runs it on a schedule, or housekeeping starts it when events wait for tables."""

    name: str
    description: str
    schedule: str = ""  # if empty, housekeeping starts the job
    runs_continuously: bool = False
    max_concurrent_runs: int = 1
    erases: bool = False  # whether the job removes old versions of objects
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Access to the tables: whether there is an Athena workgroup, and the ARNs that may read through Lake Formation."""

    athena: bool = False
    readers: tuple[str, ...] = ()


def define_jobs(data: Data, *, context: Context) -> tuple[Job, ...]:
    """The jobs of a deployment: statistics, tables and retention."""
    return (
        Job(
            name="statistics",
            description="Measures event types, and recommends partitions",
            schedule="cron(15 1 * * ? *)",
            arguments={"--max-partitions": str(context.chosen.max_partitions), "--plots": f"{data.tables_url}/plots"},
        ),
        _define_table_job(context),
        Job(
            name="retention",
            description="Removes events that are past their retention time",
            schedule="cron(30 2 * * ? *)",
            # Glue may run an erasure while events expire: both runs claim their topics, so neither disturbs the other.
            max_concurrent_runs=5,
            erases=True,
            arguments={"--do": "expire", "--event-log": data.settings["event_log"]},
        ),
    )


def _define_table_job(context: Context) -> Job:
    arguments = {"--keep-days": str(context.table_days)}
    if context.table_stream:
        description = "Adds archived events to tables for queries within moments"
        return Job(name="follow", description=description, runs_continuously=True, arguments=arguments)
    return Job(
        name="compaction",
        description="Merges the archive into tables for queries",
        schedule="" if context.table_minutes else f"cron(5 {_cron_hours(context.compaction_hours)} * * ? *)",
        arguments=arguments,
    )


def _cron_hours(hours: int) -> str:
    """The hour field of a cron expression for a run every `hours` hours. Cron rejects a step of 24 hours."""
    return "0" if hours == HOURS_PER_DAY else f"0/{hours}"


class Analytics(Construct):
    """Jobs on the archive, their alarms, and access to the tables that they write."""

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
            s3_assets.Asset(self, name, path=str(assets_folder() / folder), exclude=COMPILED_FILES)
            for name, folder in (("Package", PACKAGE), ("Jobs", JOBS))
        ]
        self.jobs = {job.name: self._create_job(job) for job in jobs}
        self._alert_on_failures(alarms)
        if queries.athena:
            self._create_workgroup()
        if queries.readers:
            self._grant_read_access(queries.readers)

    def _create_job(self, job: Job) -> glue.CfnJob:
        script = s3_assets.Asset(self, f"Script-{job.name}", path=str(assets_folder() / SCRIPTS / f"{job.name}.py"))
        full_name = f"{self._data.prefix}-{job.name}"
        role = iam.Role(self, f"Role-{job.name}", assumed_by=iam.ServicePrincipal("glue.amazonaws.com"))
        for statement in (*PERMISSIONS[job.name].statements(self._data), *self._statements(job, script)):
            role.add_to_policy(statement)
        resource = glue.CfnJob(
            self,
            job.name,
            name=full_name,
            description=job.description,
            role=role.role_arn,
            glue_version=GLUE_VERSION,
            command=glue.CfnJob.JobCommandProperty(
                name="gluestreaming" if job.runs_continuously else "glueetl",
                python_version="3",
                script_location=script.s3_object_url,
            ),
            **self._run_properties(job),
            number_of_workers=self._workers,
            execution_property=glue.CfnJob.ExecutionPropertyProperty(max_concurrent_runs=job.max_concurrent_runs),
            default_arguments={**self._default_arguments(job), **job.arguments},
        )
        resource.node.add_dependency(role)
        if job.schedule:
            glue.CfnTrigger(
                self,
                f"When-{job.name}",
                name=full_name,
                type="SCHEDULED",
                schedule=job.schedule,
                start_on_creation=True,
                actions=[glue.CfnTrigger.ActionProperty(job_name=resource.ref)],
            )
        return resource

    def _run_properties(self, job: Job) -> dict[str, Any]:
        """The workers and limits of a job.

        A job that runs continuously has small workers. Glue restarts it once a week, because Glue allows no longer
        run; housekeeping restarts it after a failure.
        """
        if job.runs_continuously:
            return {"worker_type": STREAMING_WORKER_TYPE, "maintenance_window": MAINTENANCE_WINDOW, "max_retries": 0}
        # FLEX runs on spare capacity: it starts later and costs less.
        return {
            "execution_class": "FLEX",
            "worker_type": WORKER_TYPE,
            "timeout": TIMEOUT_MINUTES,
            # Spark itself retries failed tasks. A second run would cost as much and report the same findings.
            "max_retries": 0,
        }

    def _default_arguments(self, job: Job) -> Mapping[str, str]:
        locations = self._data.settings
        return {
            "--datalake-formats": "iceberg",
            "--extra-py-files": ",".join(each.s3_object_url for each in self._packages),
            "--additional-python-modules": ",".join([*read_pins(PINNED_PACKAGES), PYARROW]),
            # Glue cannot scale quarter-size workers.
            **({} if job.runs_continuously else {"--enable-auto-scaling": "true"}),
            "--enable-metrics": "true",
            "--enable-continuous-cloudwatch-log": "true",
            "--enable-spark-ui": "true",
            "--spark-event-logs-path": f"{self._data.tables_url}/{SPARK_LOGS_PREFIX}{job.name}/",
            "--registry": locations["registry"],
            "--log-index": locations["log_index"],
            "--archive": locations["archive"],
            "--tables": f"{self._data.tables_url}/tables",
            "--report": f"{self._data.tables_url}/reports/{job.name}",
            **self._catalog_arguments(),
            "--database": self._database,
        }

    def _catalog_arguments(self) -> Mapping[str, str]:
        if self._data.has_table_bucket:
            return {"--catalog": "s3tables", "--warehouse": self._data.table_bucket_arn}
        return {"--catalog": "glue"}

    def _catalog_statement(self) -> iam.PolicyStatement:
        """The policy statement for the jobs' actions in the catalog of the tables."""
        if self._data.has_table_bucket:
            bucket = self._data.table_bucket_arn
            return iam.PolicyStatement(actions=list(TABLE_BUCKET_ACTIONS), resources=[bucket, f"{bucket}/table/*"])
        return iam.PolicyStatement(
            actions=list(GLUE_CATALOG_ACTIONS),
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
        yield self._catalog_statement()
        yield iam.PolicyStatement(
            actions=["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"],
            resources=[_arn("logs", "log-group:/aws-glue/*")],
        )
        yield iam.PolicyStatement(
            actions=["cloudwatch:PutMetricData"],
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": "Glue"}},
        )

    def _create_workgroup(self) -> None:
        """Create the workgroup for queries. The bucket of the tables keeps query results for a month."""
        key = self._data.key
        encryption = athena.CfnWorkGroup.EncryptionConfigurationProperty(
            encryption_option="SSE_KMS" if key else "SSE_S3", kms_key=key.key_arn if key else None
        )
        athena.CfnWorkGroup(
            self,
            "Workgroup",
            name=self._data.prefix,
            description=f"Queries of the tables in {self._database}",
            # Results are deleted with the stack. Tables are not.
            recursive_delete_option=True,
            work_group_configuration=athena.CfnWorkGroup.WorkGroupConfigurationProperty(
                enforce_work_group_configuration=True,
                engine_version=athena.CfnWorkGroup.EngineVersionProperty(
                    selected_engine_version="Athena engine version 3"
                ),
                bytes_scanned_cutoff_per_query=MAX_SCANNED_BYTES,
                publish_cloud_watch_metrics_enabled=False,
                result_configuration=athena.CfnWorkGroup.ResultConfigurationProperty(
                    output_location=f"{self._data.tables_url}/{QUERY_RESULTS_PREFIX}",
                    encryption_configuration=encryption,
                ),
            ),
        )

    def _grant_read_access(self, readers: Sequence[str]) -> None:
        """Let readers select from the tables. Jobs need no grant as long as the account lets IAM decide for them."""
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
            for kind, resource, permissions in (
                ("Database", database, ["DESCRIBE"]),
                ("Tables", tables, ["DESCRIBE", "SELECT"]),
            ):
                lakeformation.CfnPrincipalPermissions(
                    self,
                    f"Reader{number}{kind}",
                    catalog=catalog,
                    principal=lakeformation.CfnPrincipalPermissions.DataLakePrincipalProperty(
                        data_lake_principal_identifier=reader
                    ),
                    resource=resource,
                    permissions=permissions,
                    permissions_with_grant_option=[],
                )

    def _alert_on_failures(self, topic: sns.ITopic) -> None:
        """Send an alarm when a job fails. A job that reports findings also fails."""
        events.Rule(
            self,
            "JobFailed",
            description="A job on the archive failed or reported findings",
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


def read_pins(modules: tuple[str, ...]) -> list[str]:
    """The given packages as pip requirements, in the versions that the layer of dependencies pins."""
    pins = dict(PIN.findall((assets_folder() / DEPENDENCIES / "requirements.txt").read_text()))
    return [f"{name}=={pins[name]}" for name in modules]


def database_name(prefix: str) -> str:
    """The name of the database. The first job that needs the database creates it, so it outlives the stack of the
    jobs."""
    return prefix.replace("-", "_")


def _arn(service: str, resource: str) -> str:
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"
