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
    """References are followed to what `made` and `exports` know; the rest are told as `<name>` and `<name.attribute>`.

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
