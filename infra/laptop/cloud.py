"""What stands in for AWS: moto, and beside it a Kinesis that can do more than moto's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from botocore.config import Config
from botocore.session import Session

from infra.laptop import kinesis_local
from infra.laptop.processes import PACKAGES, end_with_the_starter, ended, python
from infra.laptop.templates import REGION, Deployment, Template

PATIENCE = 60.0

# The key under which a bootstrapped account keeps its version; templates look whether it is new enough.
BOOTSTRAPPED = "/cdk-bootstrap/hnb659fds/version"

# Of what serves, the part that others write to.
WRITTEN_TO = frozenset({"AWS::SQS::Queue"})


class NotDeployed(Exception):
    """Raised when a stack cannot be made; the message is what CloudFormation said."""


class Cloud:
    """Everything is kept in memory, until it is closed."""

    def __init__(self, logs: Path) -> None:
        self._closing = ExitStack()
        self._session = Session()
        with ExitStack() as undoing:
            undoing.callback(self.close)
            self._start(logs)
            undoing.pop_all()

    @property
    def environment(self) -> Mapping[str, str]:
        """With these variables, every client finds its services here."""
        return {
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "laptop",
            "AWS_SECRET_ACCESS_KEY": "laptop",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self._moto,
            "AWS_ENDPOINT_URL_KINESIS": self._kinesis,
        }

    @property
    def endpoints(self) -> Mapping[str, str]:
        return {"dynamodb": self._moto, "s3": self._moto, "kinesis": self._kinesis}

    def client(self, service: str) -> Any:
        return self._session.create_client(
            service,
            region_name=REGION,
            endpoint_url=self._kinesis if service == "kinesis" else self._moto,
            aws_access_key_id="laptop",
            aws_secret_access_key="laptop",  # noqa: S106  # nothing here is secret
            config=Config(retries={"mode": "standard", "total_max_attempts": 3}),
        )

    def deploy(self, deployment: Deployment) -> None:
        self.client("ssm").put_parameter(Name=BOOTSTRAPPED, Value="30", Type="String")
        self._make(f"{deployment.name}-data", deployment.data, deployment.data.content)
        self._make_streams(deployment.data)
        deployment.serving.exports = deployment.data.exports = self._exports()
        self._make(deployment.name, deployment.serving, _part(deployment.serving.content, WRITTEN_TO))

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, logs: Path) -> None:
        self._kinesis, kinesis = kinesis_local.begun()
        self._closing.callback(ended, kinesis)
        port = kinesis_local.free_port()
        self._moto = f"http://127.0.0.1:{port}"
        output = self._closing.enter_context((logs / "aws.log").open("wb"))
        moto = python(
            *("-m", "infra.laptop.moto_service", str(port)),
            env={"PYTHONPATH": PACKAGES},
            output=output,
            preexec_fn=end_with_the_starter,
        )
        self._closing.callback(ended, moto)
        kinesis_local.wait_until_it_answers(self._kinesis, kinesis)
        end = time.monotonic() + PATIENCE
        while not _answers(self._moto):
            if moto.poll() is not None or time.monotonic() > end:
                raise NotDeployed(f"moto does not answer: {output.name} tells why")
            time.sleep(0.05)

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


def _answers(address: str) -> bool:
    try:
        urlopen(address, timeout=5).close()  # noqa: S310  # an address of our own
    except OSError:
        return False
    return True
