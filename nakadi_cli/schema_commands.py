"""`nakadi schema`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import click

from nakadi_cli.api import path
from nakadi_cli.commands import Group, chosen_format, connect, print_result, subcommand
from nakadi_cli.failures import BadInput, CheckFoundProblems
from nakadi_cli.files import parse_document, read_text
from nakadi_cli.line_numbers import find_line
from nakadi_cli.output import as_json, harmless
from nakadi_cli.schema_documents import PUBLISHERS_AFFECTED, schema_text, with_readable_schema, with_schema_as_text
from nakadi_cli.schema_proposals import example_events, infer_schema, schema_from_model
from nakadi_cli.schema_rehearsals import rehearse_schema

ANNOTATION_FORMATS = ("github", "gitlab")


@click.group(cls=Group)
def schema() -> None:
    """Show the versions of a schema, compare another schema with them, propose schemas, and generate example events."""


for each in (rehearse_schema, infer_schema, schema_from_model, example_events):
    schema.add_command(each)


@subcommand(schema, "list", "nakadi schema list order.placed")
@click.argument("name")
def list_schemas(name: str) -> None:
    """List the versions of an event type's schema, the newest first."""
    found = list(connect().items(path("event-types", name, "schemas")))
    print_result(
        [with_readable_schema({"schema": each})["schema"] for each in found],
        {"VERSION": lambda each: each["version"], "CREATED": lambda each: each["created_at"]},
    )


@subcommand(
    schema,
    "get",
    "nakadi schema get order.placed",
    "nakadi schema get order.placed --version 1.0.0 | nakadi event-types update -f -",
)
@click.argument("name")
@click.option("--version", default="latest", show_default=True, help="The version of the schema.")
def get_schema(name: str, version: str) -> None:
    """Show an event type with a version of its schema, as `event-types update` and `schema check` accept it."""
    api = connect()
    definition = api.get(path("event-types", name))
    earlier = api.get(path("event-types", name, "schemas", version))
    shown = with_readable_schema({**definition, "schema": earlier})
    if chosen_format("json") == "yaml":
        print_result(shown)
    else:
        click.echo(as_json(shown, indent=2))


@subcommand(
    schema,
    "check",
    "nakadi schema check order.schema.json --event-type order.placed",
    "nakadi schema check order.placed.json",
    "nakadi schema check order.placed.json --annotations github",
    "nakadi schema check order.placed.json --annotations gitlab > gl-code-quality-report.json",
)
@click.argument("file")
@click.option("--event-type", help="The event type, if the file holds only a schema.")
@click.option("--version", default="latest", show_default=True, help="The version to compare the schema with.")
@click.option(
    "--annotations",
    type=click.Choice(ANNOTATION_FORMATS),
    help="Print annotations for code review: workflow commands of GitHub, or a code quality report of GitLab.",
)
def check_schema(file: str, event_type: str | None, version: str, annotations: str | None) -> None:
    """Check whether the schema in FILE could follow the current one of an event type. This changes nothing.

    FILE is a JSON schema, or the definition of an event type. The exit code is 1 if the schema could not follow. Then
    a proposal shows the necessary changes, as a JSON Patch.
    """
    source = read_schema(file, event_type)
    verdict = connect().post(
        path("event-types", source.event_type, "schemas", version, "compatibility-check"), {"schema": source.text}
    )
    findings = list(findings_in(verdict, source))
    if annotations == "github":
        click.echo("\n".join(github_command(each, file) for each in findings), nl=bool(findings))
    elif annotations == "gitlab":
        click.echo(as_json([gitlab_issue(each, file) for each in findings], indent=2))
    elif chosen_format("table") == "table":
        click.echo("\n".join(map(harmless, report_lines(verdict, findings, source))))
    else:
        print_result(verdict)
    if not verdict["compatible"]:
        raise CheckFoundProblems(
            f"The schema cannot follow version {verdict['validated_against_version']} of {source.event_type}."
        )


@dataclass(frozen=True)
class SchemaSource:
    """A schema in a file. `steps` lead from the document in the file to the schema."""

    file: str
    content: str
    steps: tuple[str, ...]
    event_type: str
    text: str


@dataclass(frozen=True)
class Finding:
    """A change of a schema, and the line of the file that it is in."""

    rule: str
    path: str
    line: int
    level: Literal["patch", "minor", "major"]
    refused: bool
    explanation: str

    @property
    def is_warning(self) -> bool:
        return self.rule == PUBLISHERS_AFFECTED and not self.refused


def read_schema(file: str, event_type: str | None) -> SchemaSource:
    """Read a schema, or the definition of an event type; `event_type` overrides the name in a definition."""
    content = read_text(file)
    document = parse_document(content, file)
    steps: tuple[str, ...] = ()
    if isinstance(document, dict) and "schema" in document and "name" in document:
        event_type, steps = event_type or document["name"], ("schema", "schema")
        document = with_schema_as_text(document)["schema"]["schema"]
    if event_type is None:
        raise BadInput("Name the event type for the schema with --event-type.")
    return SchemaSource(file, content, steps, event_type, schema_text(document))


def findings_in(verdict: Mapping[str, Any], source: SchemaSource) -> Iterator[Finding]:
    """Find the line of each change that a verdict names.

    If the broker names no changes, there is at most one finding.
    """
    if "changes" not in verdict and not verdict["compatible"]:
        yield Finding("INCOMPATIBLE", "#/", find_line(source.content, source.steps), "major", True, verdict["error"])
    for change in verdict.get("changes", ()):
        steps = [each for each in change["path"].removeprefix("#/").split("/") if each]
        yield Finding(
            rule=change["rule"],
            path=change["path"],
            line=find_line(source.content, (*source.steps, *steps)),
            level=change["level"],
            refused=not change["permitted"],
            explanation=change["explanation"],
        )
    for reader in verdict.get("readers", ()):
        for change in reader["changes"]:
            yield Finding(
                rule="MEMBER_READ",
                path=change["member"],
                line=find_line(source.content, source.steps),
                level="major",
                refused=not verdict["compatible"],
                explanation=f"{change['explanation']} {_reader_text(reader)} reads it.",
            )


def _reader_text(reader: Mapping[str, Any]) -> str:
    return f"Subscription {reader['subscription_id']} of {reader['owning_application']}"


def report_lines(verdict: Mapping[str, Any], findings: list[Finding], source: SchemaSource) -> Iterator[str]:
    """The lines that report the findings to a person, each change with its place in the file."""
    after = f"version {verdict['validated_against_version']} of {source.event_type}"
    mode = f"mode {verdict['compatibility_mode']}"
    if verdict["compatible"] and verdict.get("level") == "none":
        yield f"{source.file}: is the schema of {after}."
    elif verdict["compatible"]:
        yield f"{source.file}: could follow {after} in {mode}, as a {verdict.get('level', 'new')} version."
    else:
        yield f"{source.file}: cannot follow {after} in {mode}."
    for each in findings:
        label = "refused" if each.refused else "warning" if each.is_warning else each.level
        yield f"{source.file}:{each.line}: {label}: {each.explanation}"
    if "proposal" in verdict:
        yield "Proposal: with this JSON Patch, the schema would be accepted."
        yield from (f"  {as_json(each)}" for each in verdict["proposal"])


def github_command(finding: Finding, file: str) -> str:
    """Write a workflow command, which GitHub shows beside the line."""
    kind = "error" if finding.refused else "warning" if finding.is_warning else "notice"
    properties = {"file": file, "line": str(finding.line), "title": finding.rule}
    written = ",".join(f"{name}={_escape(value, for_property=True)}" for name, value in properties.items())
    return f"::{kind} {written}::{_escape(finding.explanation, for_property=False)}"


def gitlab_issue(finding: Finding, file: str) -> dict[str, Any]:
    """Write an issue of a code quality report, which GitLab shows beside the line."""
    identity = hashlib.sha256(f"{file} {finding.rule} {finding.path}".encode()).hexdigest()
    return {
        "description": finding.explanation,
        "check_name": finding.rule,
        "fingerprint": identity,
        "severity": "blocker" if finding.refused else "major" if finding.is_warning else "info",
        "location": {"path": file, "lines": {"begin": finding.line}},
    }


def _escape(text: str, *, for_property: bool) -> str:
    """Escape characters that would end a workflow command, or one of its properties."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.replace(":", "%3A").replace(",", "%2C") if for_property else escaped
