"""What stands in for AWS: moto, and beside it a Kinesis that can do more than moto's."""

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
from infra.laptop.processes import PACKAGES, end_with_the_starter, ended, python
from infra.laptop.roles import OWNER, Statement, write
from infra.laptop.templates import REGION, Deployment, Template

PATIENCE = 60.0
HEALTH = "/healthcheck"  # of the local Kinesis; moto answers anything that is not signed

# The key under which a bootstrapped account keeps its version; templates look whether it is new enough.
BOOTSTRAPPED = "/cdk-bootstrap/hnb659fds/version"

# Of what serves, the part that others write to.
WRITTEN_TO = frozenset({"AWS::SQS::Queue"})


class NotDeployed(Exception):
    """Raised when a stack cannot be made; the message is what CloudFormation said."""


@dataclass(frozen=True, slots=True)
class Strictness:
    """Whether roles may do what the templates allow them and nothing else, and whether AWS's limits hold."""

    roles: bool = False
    limits: bool = False


LENIENT = Strictness()
STRICT = Strictness(roles=True, limits=True)


class Cloud:
    """Everything is kept in memory, until it is closed."""

    def __init__(self, logs: Path, strictness: Strictness = LENIENT) -> None:
        self._closing = ExitStack()
        self._session = Session()
        self._strictness = strictness
        with ExitStack() as undoing:
            undoing.callback(self.close)
            self._start(logs)
            undoing.pop_all()

    def environment(self, role: str = OWNER) -> Mapping[str, str]:
        """With these variables, every client finds its services here, and asks them as this role."""
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
        self.client("ssm").put_parameter(Name=BOOTSTRAPPED, Value="30", Type="String")
        self._make(f"{deployment.name}-data", deployment.data, deployment.data.content)
        self._make_streams(deployment.data)
        exports = self._exports()
        for template in deployment.templates:
            template.exports = exports
        self._make(deployment.name, deployment.serving, _part(deployment.serving.content, WRITTEN_TO))
        for template in deployment.templates:
            template.made |= template.arns()
        self.enforce(deployment.roles)

    def enforce(self, roles: Mapping[str, Sequence[Statement]]) -> None:
        """From now on there are these roles. Before, only the owner may do anything."""
        write(roles, self._roles)

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
        self._kinesis, kinesis = kinesis_local.begun()
        self._closing.callback(ended, kinesis)
        roles = [str(self._roles)] if self._strictness.roles else []
        self._moto, moto = self._begun("moto_service", *roles, log=logs / "aws.log")
        kinesis_local.wait_until_it_answers(self._kinesis, kinesis)
        if self._strictness != LENIENT:
            limits = ["limits"] if self._strictness.limits else []
            self._kinesis, gate = self._begun(
                "kinesis_gate", self._kinesis, str(self._roles), *limits, log=logs / "kinesis.log"
            )
            _wait(self._kinesis, gate, logs / "kinesis.log")
        _wait(self._moto, moto, logs / "aws.log")

    def _begun(self, program: str, *arguments: str, log: Path) -> tuple[str, subprocess.Popen[bytes]]:
        """Where a program of this package will answer, and its process."""
        port = kinesis_local.free_port()
        process = python(
            *("-m", f"infra.laptop.{program}", str(port), *arguments),
            env={"PYTHONPATH": PACKAGES},
            output=self._closing.enter_context(log.open("wb")),
            preexec_fn=end_with_the_starter,
        )
        self._closing.callback(ended, process)
        return f"http://127.0.0.1:{port}", process

    def _make(self, name: str, template: Template, content: Mapping[str, Any]) -> None:
        cloudformation = self.client("cloudformation")
        cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(content))
        [stack] = cloudformation.describe_stacks(StackName=name)["Stacks"]
        if stack["StackStatus"] != "CREATE_COMPLETE":
            raise NotDeployed(f"{name}: {stack['StackStatus']} {stack.get('StackStatusReason', '')}")
        for each in cloudformation.describe_stack_resources(StackName=name)["StackResources"]:
            # What moto does not know is passed over, and has no name.
            if "PhysicalResourceId" in each:
                template.made[each["LogicalResourceId"]] = each["PhysicalResourceId"]

    def _make_streams(self, template: Template) -> None:
        kinesis = self.client("kinesis")
        for _, stream in template.named("AWS::Kinesis::Stream"):
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


def _part(content: Mapping[str, Any], kinds: frozenset[str]) -> Mapping[str, Any]:
    resources = {name: each for name, each in content["Resources"].items() if each["Type"] in kinds}
    return {"Resources": resources}


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not _answers(address):
        if process.poll() is not None or time.monotonic() > end:
            raise NotDeployed(f"What stands in for AWS does not answer: {log} tells why")
        time.sleep(0.05)


def _answers(address: str) -> bool:
    try:
        urlopen(f"{address}{HEALTH}", timeout=5).close()  # noqa: S310  # an address of our own
    except OSError:
        return False
    return True
