"""Local stand-ins for AWS: moto, and a Kinesis that can do more than moto's."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from botocore.config import Config
from botocore.session import Session

from infra.laptop import kinesis_local
from infra.laptop.processes import PACKAGES, end_with_parent, start_python, stop_process
from infra.laptop.roles import OWNER, Statement, write_roles
from infra.laptop.templates import REGION, Deployment, Template

TIMEOUT_SECONDS = 60.0
HEALTH_PATH = "/healthcheck"  # for the local Kinesis; moto answers every unsigned request

# The parameter with the version of the CDK bootstrap stack, which templates check.
BOOTSTRAP_VERSION_KEY = "/cdk-bootstrap/hnb659fds/version"

# The resources of the serving stack that other parts write to.
QUEUE_KINDS = frozenset({"AWS::SQS::Queue"})


class DeploymentFailed(Exception):
    """Raised if a stack cannot be created; the message is CloudFormation's."""


@dataclass(frozen=True, slots=True)
class Strictness:
    """Whether to enforce the permissions of the templates, and AWS's limits."""

    roles: bool = False
    limits: bool = False


LENIENT = Strictness()
STRICT = Strictness(roles=True, limits=True)


class Cloud:
    """The local services. They keep all their data in memory until `close`."""

    def __init__(self, logs: Path, strictness: Strictness = LENIENT) -> None:
        self._closing = ExitStack()
        self._session = Session()
        self._strictness = strictness
        with ExitStack() as cleanup:
            cleanup.callback(self.close)
            self._start(logs)
            cleanup.pop_all()

    def environment(self, role: str = OWNER) -> Mapping[str, str]:
        """The variables that make AWS clients use these services with this role."""
        return {
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": role,
            "AWS_SECRET_ACCESS_KEY": OWNER,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self._moto,
            "AWS_ENDPOINT_URL_KINESIS": self._kinesis,
        }

    @property
    def endpoints(self) -> Mapping[str, str]:
        return {"dynamodb": self._moto, "s3": self._moto, "kinesis": self._kinesis}

    def client(self, service: str, role: str = OWNER) -> Any:
        return self._session.create_client(
            service,
            region_name=REGION,
            endpoint_url=self._kinesis if service == "kinesis" else self._moto,
            aws_access_key_id=role,
            aws_secret_access_key=OWNER,
            config=Config(retries={"mode": "standard", "total_max_attempts": 3}),
        )

    def deploy(self, deployment: Deployment) -> None:
        self.client("ssm").put_parameter(Name=BOOTSTRAP_VERSION_KEY, Value="30", Type="String")
        self._create_stack(f"{deployment.name}-data", deployment.data, deployment.data.content)
        self._create_streams(deployment.data)
        exports = self._exports()
        for template in deployment.templates:
            template.exports = exports
        self._create_stack(
            deployment.name, deployment.serving, _select_resources(deployment.serving.content, QUEUE_KINDS)
        )
        for template in deployment.templates:
            template.created_names |= template.arns()
        self.enforce(deployment.roles)

    def enforce(self, roles: Mapping[str, Sequence[Statement]]) -> None:
        """Enforce these roles from now on. Until then, only the owner may do anything."""
        write_roles(roles, self._roles)

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, logs: Path) -> None:
        self._roles = Path(self._closing.enter_context(TemporaryDirectory())) / "roles.json"
        self._kinesis, kinesis = kinesis_local.start()
        self._closing.callback(stop_process, kinesis)
        roles = [str(self._roles)] if self._strictness.roles else []
        self._moto, moto = self._start_program("moto_service", *roles, log=logs / "aws.log")
        kinesis_local.wait_until_ready(self._kinesis, kinesis)
        if self._strictness != LENIENT:
            limits = ["limits"] if self._strictness.limits else []
            self._kinesis, gate = self._start_program(
                "kinesis_gate", self._kinesis, str(self._roles), *limits, log=logs / "kinesis.log"
            )
            _wait_until_ready(self._kinesis, gate, logs / "kinesis.log")
        _wait_until_ready(self._moto, moto, logs / "aws.log")

    def _start_program(self, program: str, *arguments: str, log: Path) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a program of this package; return its address and its process."""
        port = kinesis_local.free_port()
        process = start_python(
            *("-m", f"infra.laptop.{program}", str(port), *arguments),
            env={"PYTHONPATH": PACKAGES},
            output=self._closing.enter_context(log.open("wb")),
            preexec_fn=end_with_parent,
        )
        self._closing.callback(stop_process, process)
        return f"http://127.0.0.1:{port}", process

    def _create_stack(self, name: str, template: Template, content: Mapping[str, Any]) -> None:
        cloudformation = self.client("cloudformation")
        cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(content))
        [stack] = cloudformation.describe_stacks(StackName=name)["Stacks"]
        if stack["StackStatus"] != "CREATE_COMPLETE":
            raise DeploymentFailed(f"{name}: {stack['StackStatus']} {stack.get('StackStatusReason', '')}")
        for each in cloudformation.describe_stack_resources(StackName=name)["StackResources"]:
            # moto skips resources that it does not know, which then have no name.
            if "PhysicalResourceId" in each:
                template.created_names[each["LogicalResourceId"]] = each["PhysicalResourceId"]

    def _create_streams(self, template: Template) -> None:
        kinesis = self.client("kinesis")
        for _, stream in template.resources("AWS::Kinesis::Stream"):
            mode = stream["StreamModeDetails"]
            shards = {} if mode["StreamMode"] == "ON_DEMAND" else {"ShardCount": stream["ShardCount"]}
            kinesis.create_stream(StreamName=stream["Name"], StreamModeDetails=mode, **shards)
            kinesis.get_waiter("stream_exists").wait(StreamName=stream["Name"], WaiterConfig={"Delay": 1})
            hours = stream.get("RetentionPeriodHours", 24)
            if hours > 24:
                kinesis.increase_stream_retention_period(StreamName=stream["Name"], RetentionPeriodHours=hours)

    def _exports(self) -> dict[str, str]:
        exports = self.client("cloudformation").list_exports()["Exports"]
        return {each["Name"]: each["Value"] for each in exports}


def _select_resources(content: Mapping[str, Any], kinds: frozenset[str]) -> Mapping[str, Any]:
    resources = {name: each for name, each in content["Resources"].items() if each["Type"] in kinds}
    return {"Resources": resources}


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not _answers(address):
        if process.poll() is not None or time.monotonic() > end:
            raise DeploymentFailed(f"A local stand-in for AWS does not answer; see {log}")
        time.sleep(0.05)


def _answers(address: str) -> bool:
    try:
        urlopen(f"{address}{HEALTH_PATH}", timeout=5).close()  # noqa: S310  # an address of our own
    except OSError:
        return False
    return True
