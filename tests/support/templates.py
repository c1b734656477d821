"""Reads CloudFormation templates. Tests find resources by type and property, never by their generated names."""

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


class Deployment:
    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.data = Template(folder / f"{name}-data.template.json")
        self.serving = Template(folder / f"{name}.template.json")
        analytics = folder / f"{name}-analytics.template.json"
        if analytics.exists():
            self.analytics = Template(analytics)


class Template:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text())
        self.resources: dict[str, Any] = self.content["Resources"]

    def all(self, kind: str) -> dict[str, Properties]:
        """The properties of all resources of a type, by their generated names."""
        return {name: each.get("Properties", {}) for name, each in self.resources.items() if each["Type"] == kind}

    def one(self, kind: str) -> Properties:
        [found] = self.all(kind).values()
        return found

    def functions(self) -> dict[str, Properties]:
        """The functions by the names of their folders in `functions/`."""
        return {
            tag["Value"]: each
            for each in self.all("AWS::Lambda::Function").values()
            for tag in each.get("Tags", [])
            if tag["Key"] == "function"
        }

    def statements(self, role: Any) -> Iterator[dict[str, Any]]:
        """The statements of a role, from its own policies and from those that are attached to it."""
        name = _name(role)
        for policy in self.resources[name]["Properties"].get("Policies", []):
            yield from policy["PolicyDocument"]["Statement"]
        for policy in self.all("AWS::IAM::Policy").values():
            if {"Ref": name} in policy["Roles"]:
                yield from policy["PolicyDocument"]["Statement"]

    def actions(self, role: Any) -> set[str]:
        return {action for statement in self.statements(role) for action in as_list(statement["Action"])}

    def environment(self, function: str) -> dict[str, str]:
        variables = self.functions()[function]["Environment"]["Variables"]
        return {name: text(value) for name, value in variables.items()}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def text(value: Any) -> str:
    """A value as text; references are resolved as far as they are known before the deployment."""
    match value:
        case str():
            return value
        case {"Ref": name}:
            return PSEUDO.get(name, f"<{name}>")
        case {"Fn::Sub": str(pattern)}:
            return re.sub(r"\$\{(.+?)\}", lambda found: text({"Ref": found[1]}), pattern)
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [separator, parts]}:
            return separator.join(text(part) for part in parts)
        case {"Fn::ImportValue": name}:
            return f"<{text(name)}>"
    raise TypeError(value)


def _name(reference: Any) -> str:
    match reference:
        case {"Fn::GetAtt": [name, "Arn"]} | {"Ref": name}:
            return str(name)
    raise TypeError(reference)
