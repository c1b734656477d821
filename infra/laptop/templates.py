"""CloudFormation templates, and what is meant by references in them once everything is made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Properties = Mapping[str, Any]

ACCOUNT = "123456789012"
REGION = "eu-central-1"
PSEUDO = {"AWS::Region": REGION, "AWS::AccountId": ACCOUNT, "AWS::Partition": "aws", "AWS::URLSuffix": "amazonaws.com"}


class Template:
    """References are followed to what `made` and `exports` know; the rest are shown as `<name>` and `<name.attribute>`.

    What is on a laptop only in part, such as a load balancer, is known by that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text())
        self.made: dict[str, str] = {}
        self.exports: dict[str, str] = {}

    def named(self, kind: str) -> Iterator[tuple[str, Properties]]:
        """The resources of a type, by their names in the template, and references in them followed."""
        for name, each in self.content["Resources"].items():
            if each["Type"] == kind:
                yield name, self.resolved(each.get("Properties", {}))

    def of_kind(self, kind: str) -> list[str]:
        """The names of the resources of a type."""
        return [name for name, each in self.content["Resources"].items() if each["Type"] == kind]

    def arns(self) -> dict[str, str]:
        """The ARNs of roles, which are known by their names in the template, and of queues that were made."""
        roles = {f"{name}.Arn": f"arn:aws:iam::{ACCOUNT}:role/{name}" for name in self.of_kind("AWS::IAM::Role")}
        urls = {name: self.made[name] for name in self.of_kind("AWS::SQS::Queue") if name in self.made}
        queues = {
            f"{name}.Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{url.rpartition('/')[2]}" for name, url in urls.items()
        }
        return roles | queues

    def roles(self) -> Mapping[str, list[Properties]]:
        """What each role is allowed, by its name in the template, wherever it is written."""
        allowed: dict[str, list[Properties]] = {name: [] for name in self.of_kind("AWS::IAM::Role")}
        for name, role in self.named("AWS::IAM::Role"):
            for policy in role.get("Policies", []):
                allowed[name] += policy["PolicyDocument"]["Statement"]
        for name, policy in self.named("AWS::IAM::Policy"):
            for reference in self.content["Resources"][name]["Properties"]["Roles"]:
                allowed[reference["Ref"]] += policy["PolicyDocument"]["Statement"]
        return allowed

    def one(self, kind: str) -> Properties:
        [(_, found)] = self.named(kind)
        return found

    def resolved(self, value: Any) -> Any:
        match value:
            case dict() if len(value) == 1 and (name := next(iter(value))) in FOLLOWED:
                return getattr(self, FOLLOWED[name])(value[name])
            case dict():
                return {name: self.resolved(each) for name, each in value.items()}
            case list():
                return [self.resolved(each) for each in value]
        return value

    def _ref(self, name: str) -> str:
        return PSEUDO.get(name) or self.made.get(name, f"<{name}>")

    def _attribute(self, path: list[str]) -> str:
        name = ".".join(path)
        return self.made.get(name, f"<{name}>")

    def _joined(self, content: tuple[str, list[Any]]) -> str:
        separator, parts = content
        return separator.join(self.resolved(part) for part in parts)

    def _substituted(self, content: str | tuple[str, dict[str, Any]]) -> str:
        text, variables = (content, {}) if isinstance(content, str) else content
        known = self.resolved(variables)
        return re.sub(r"\$\{([^!}]+)\}", lambda found: known.get(found[1]) or self._ref(found[1]), text)

    def _imported(self, name: Any) -> str:
        known = self.resolved(name)
        return self.exports.get(known, f"<{known}>")


FOLLOWED = {
    "Ref": "_ref",
    "Fn::GetAtt": "_attribute",
    "Fn::Join": "_joined",
    "Fn::Sub": "_substituted",
    "Fn::ImportValue": "_imported",
}


class Deployment:
    """What `cdk synth` wrote: what is kept, and what serves it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = Template(folder / f"{name}-data.template.json")
        self.serving = Template(folder / f"{name}.template.json")
        self.analytics = Template(folder / f"{name}-analytics.template.json")

    @property
    def roles(self) -> Mapping[str, list[Properties]]:
        """What every role of a part that runs here is allowed, by its name."""
        return {name: allowed for each in self.templates for name, allowed in each.roles().items()}

    @property
    def templates(self) -> tuple[Template, ...]:
        return self.data, self.serving, self.analytics
