"""The function that answers queries with SQL. DuckDB is too large for a layer, so a container image contains it."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import Size, Tags
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from nakadi_cdk.assets import assets_folder
from nakadi_cdk.context import ECR_IMAGE
from nakadi_cdk.data import Data
from nakadi_cdk.functions import ANSWER_TIMEOUT, ARCHITECTURE, NAMESPACE_VARIABLE, create_log_group
from nakadi_cdk.images import QUERIES_IMAGE, image_ignores, repository_and_tag
from nakadi_cdk.permissions import query_statements

NAME = "queries"
HANDLER = ["handler.handler"]


class QueryFunction(Construct):
    """The function, which may read the tables and nothing else: it reads the log as a client of the API.

    Lambda gives each query an execution environment of its own, so queries share memory neither with each other nor
    with other functions.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        data: Data,
        database: str,
        environment: Mapping[str, str],
        memory: int,
        image: str,
        log_retention: logs.RetentionDays,
    ) -> None:
        super().__init__(scope, name)
        log_group = create_log_group(self, f"{data.prefix}-{NAME}", log_retention)
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        self.function = lambda_.DockerImageFunction(
            self,
            "Function",
            function_name=f"{data.prefix}-{NAME}",
            code=self._code(image),
            architecture=ARCHITECTURE,
            memory_size=memory,
            # For data that does not fit into the memory of a query.
            ephemeral_storage_size=Size.mebibytes(memory),
            timeout=ANSWER_TIMEOUT,
            environment={**environment, NAMESPACE_VARIABLE: data.prefix},
            role=role,
            log_group=log_group,
            tracing=lambda_.Tracing.ACTIVE,
        )
        log_group.grant_write(role)
        for statement in query_statements(data, database):
            role.add_to_policy(statement)
        Tags.of(self.function).add("function", NAME)

    def _code(self, image: str) -> lambda_.DockerImageCode:
        """The existing image of that name, or one that the deployment builds with Docker or a similar tool."""
        if in_ecr := ECR_IMAGE.fullmatch(image):
            repository, tag = repository_and_tag(self, in_ecr)
            return lambda_.DockerImageCode.from_ecr(repository, tag_or_digest=tag, cmd=HANDLER)
        return lambda_.DockerImageCode.from_image_asset(
            str(assets_folder()),
            file=QUERIES_IMAGE,
            platform=ecr_assets.Platform.LINUX_ARM64,
            exclude=image_ignores(QUERIES_IMAGE),
            cmd=HANDLER,
        )
