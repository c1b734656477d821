"""References in templates, and schedules."""

import json

import pytest

from infra.laptop.schedule import UnsupportedSchedule, parse_rate, scheduled_event
from infra.laptop.templates import Template


@pytest.fixture
def template(tmp_path):
    (tmp_path / "template.json").write_text(json.dumps({"Resources": {}}))
    template = Template(tmp_path / "template.json")
    template.created_names |= {"Table": "nakadi-documents", "Table.Arn": "arn:table"}
    template.exports |= {"data:Stream": "arn:stream"}
    return template


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"Ref": "AWS::Region"}, "eu-central-1"),
        ({"Ref": "Table"}, "nakadi-documents"),
        ({"Ref": "Unknown"}, "<Unknown>"),
        ({"Fn::GetAtt": ["Table", "Arn"]}, "arn:table"),
        ({"Fn::GetAtt": ["Balancer", "DNSName"]}, "<Balancer.DNSName>"),
        ({"Fn::Join": ["-", ["a", {"Ref": "Table"}]]}, "a-nakadi-documents"),
        ({"Fn::Sub": "x-${AWS::AccountId}"}, "x-123456789012"),
        ({"Fn::Sub": ["${Name}/${Table}", {"Name": {"Ref": "Table"}}]}, "nakadi-documents/nakadi-documents"),
        ({"Fn::ImportValue": "data:Stream"}, "arn:stream"),
        ({"a": [{"Ref": "Table"}, 1, None], "Ref": "two"}, {"a": ["nakadi-documents", 1, None], "Ref": "two"}),
    ],
)
def test_references_are_followed(template, value, expected):
    """A reference to a resource that does not exist here becomes the resource's name, in angle brackets."""
    assert template.resolve(value) == expected


def test_arns_of_what_cloudformation_reports_otherwise(tmp_path):
    """The ARN of a queue is derived from its URL, and the ARN of a role from its name, because no role exists here."""
    content = {
        "Aside": {"Type": "AWS::SQS::Queue"},
        "Later": {"Type": "AWS::SQS::Queue"},
        "R": {"Type": "AWS::IAM::Role"},
    }
    (tmp_path / "template.json").write_text(json.dumps({"Resources": content}))
    template = Template(tmp_path / "template.json")
    template.created_names["Aside"] = "https://sqs/123456789012/nakadi-aside-1"
    assert template.arns() == {
        "Aside.Arn": "arn:aws:sqs:eu-central-1:123456789012:nakadi-aside-1",
        "R.Arn": "arn:aws:iam::123456789012:role/R",
    }


@pytest.mark.parametrize(("expression", "seconds"), [("rate(1 minute)", 60), ("rate(5 minutes)", 300)])
def test_a_rate_is_given_in_seconds(expression, seconds):
    """A rate in minutes is converted to seconds."""
    assert parse_rate(expression) == seconds


def test_other_schedules_are_refused():
    """Other schedules are refused, because the deployment on this machine would never run them."""
    with pytest.raises(UnsupportedSchedule, match="cron"):
        parse_rate("cron(0 12 * * ? *)")


def test_a_round_has_the_event_of_its_rule():
    """The event of a scheduled round names its rule."""
    assert scheduled_event("House")["resources"] == ["arn:aws:events:eu-central-1:123456789012:rule/House"]
