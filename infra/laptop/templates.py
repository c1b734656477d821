"""CloudFormation templates, and the resolution of references in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Properties = Mapping[str, Any]

ACCOUNT = "123456789012"
REGION = "eu-central-1"
PSEUDO_PARAMETERS = {
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}


class Template:
    """A template. References resolve to `created_names` and `exports`; others become `<name>` or `<name.attribute>`.

    Resources without a local counterpart, such as a load balancer, keep such a placeholder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text())
        self.created_names: dict[str, str] = {}
        self.exports: dict[str, str] = {}

    def resources(self, kind: str) -> Iterator[tuple[str, Properties]]:
        """The resources of a type by logical id, with resolved references."""
        for name, each in self.content["Resources"].items():
            if each["Type"] == kind:
                yield name, self.resolve(each.get("Properties", {}))

    def resource_names(self, kind: str) -> list[str]:
        """The logical ids of the resources of a type."""
        return [name for name, each in self.content["Resources"].items() if each["Type"] == kind]

    def arns(self) -> dict[str, str]:
        """The ARNs of roles, made of their logical ids, and of created queues."""
        roles = {f"{name}.Arn": f"arn:aws:iam::{ACCOUNT}:role/{name}" for name in self.resource_names("AWS::IAM::Role")}
        urls = {
            name: self.created_names[name]
            for name in self.resource_names("AWS::SQS::Queue")
            if name in self.created_names
        }
        queues = {
            f"{name}.Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{url.rpartition('/')[2]}" for name, url in urls.items()
        }
        return roles | queues

    def roles(self) -> Mapping[str, list[Properties]]:
        """The statements of each role by logical id, from its own and attached policies."""
        allowed: dict[str, list[Properties]] = {name: [] for name in self.resource_names("AWS::IAM::Role")}
        for name, role in self.resources("AWS::IAM::Role"):
            for policy in role.get("Policies", []):
                allowed[name] += policy["PolicyDocument"]["Statement"]
        for name, policy in self.resources("AWS::IAM::Policy"):
            for reference in self.content["Resources"][name]["Properties"]["Roles"]:
                allowed[reference["Ref"]] += policy["PolicyDocument"]["Statement"]
        return allowed

    def one(self, kind: str) -> Properties:
        [(_, found)] = self.resources(kind)
        return found

    def resolve(self, value: Any) -> Any:
        match value:
            case dict() if len(value) == 1 and (name := next(iter(value))) in INTRINSIC_FUNCTIONS:
                return getattr(self, INTRINSIC_FUNCTIONS[name])(value[name])
            case dict():
                return {name: self.resolve(each) for name, each in value.items()}
            case list():
                return [self.resolve(each) for each in value]
        return value

    def _ref(self, name: str) -> str:
        return PSEUDO_PARAMETERS.get(name) or self.created_names.get(name, f"<{name}>")

    def _attribute(self, path: list[str]) -> str:
        name = ".".join(path)
        return self.created_names.get(name, f"<{name}>")

    def _join(self, content: tuple[str, list[Any]]) -> str:
        separator, parts = content
        return separator.join(self.resolve(part) for part in parts)

    def _substitute(self, content: str | tuple[str, dict[str, Any]]) -> str:
        text, variables = (content, {}) if isinstance(content, str) else content
        known = self.resolve(variables)
        return re.sub(r"\$\{([^!}]+)\}", lambda found: known.get(found[1]) or self._ref(found[1]), text)

    def _import_value(self, name: Any) -> str:
        known = self.resolve(name)
        return self.exports.get(known, f"<{known}>")


INTRINSIC_FUNCTIONS = {
    "Ref": "_ref",
    "Fn::GetAtt": "_attribute",
    "Fn::Join": "_join",
    "Fn::Sub": "_substitute",
    "Fn::ImportValue": "_import_value",
}


class Deployment:
    """The output of `cdk synth`: the templates of all stacks."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = Template(folder / f"{name}-data.template.json")
        self.serving = Template(folder / f"{name}.template.json")
        self.analytics = Template(folder / f"{name}-analytics.template.json")

    @property
    def roles(self) -> Mapping[str, list[Properties]]:
        """The statements of every role by its name."""
        return {name: allowed for each in self.templates for name, allowed in each.roles().items()}

    @property
    def templates(self) -> tuple[Template, ...]:
        return self.data, self.serving, self.analytics
