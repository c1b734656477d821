"""The templates as a whole: the findings of the service's own rules and of the reviewers."""

import json
from pathlib import Path

import pytest

from nakadi_cdk import Context
from tests.infra.conftest import NOT_LOOKED_AT
from tests.support.lazy_modules import LazyModule
from tests.support.templates import REGION

cdk = LazyModule("aws_cdk")
sqs = LazyModule("aws_cdk.aws_sqs")
review = LazyModule("infra.review")

NAMES = ("data", "serving", "analytics")

MOST_RESOURCES = 500
MOST_BYTES = 1_000_000


@pytest.fixture(scope="session", params=NAMES)
def template(request, deployment):
    return getattr(deployment, request.param)


def linter_complaints(template):
    from cfnlint.api import ManualArgs, lint_file  # noqa: PLC0415  # it takes a second: only for tests that need it

    found = lint_file(template.path, config=ManualArgs(regions=[REGION], ignore_checks=NOT_LOOKED_AT))
    return [(each.rule.id, each.path, each.message) for each in found]


def test_a_template_is_sound(template):
    """cfn-lint finds no fault."""
    assert linter_complaints(template) == []


@pytest.mark.long("tests/infra/test_templates.py::test_a_template_is_sound")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chosen", ["large_deployment", "sleeping_deployment"])
def test_a_template_is_sound_whatever_was_chosen(request, chosen, name):
    """cfn-lint finds nothing in a deployment with every option, or in a sleeping one with a table bucket."""
    assert linter_complaints(getattr(request.getfixturevalue(chosen), name)) == []


def test_a_template_is_small_enough(template):
    """A template has at most 500 resources and a megabyte, which are the limits of CloudFormation."""
    assert len(template.resources) < MOST_RESOURCES
    assert template.path.stat().st_size < MOST_BYTES


def test_a_template_knows_neither_account_nor_region(template):
    """A template is the same for every account and region, which the deployment fills in."""
    written = template.path.read_text()

    assert REGION not in written.replace("arn:aws:acm:eu-central-1:123456789012:certificate", "")
    assert "123456789012" not in written.replace("arn:aws:acm:eu-central-1:123456789012:certificate", "")


def test_everything_bears_its_stage(template):
    """Every resource that has tags has those of the application and the stage, so bills and searches can distinguish
    the stages.
    """
    for name, each in template.resources.items():
        tags = each.get("Properties", {}).get("Tags")
        if tags is not None:
            told = tags if isinstance(tags, dict) else {tag["Key"]: tag["Value"] for tag in tags}
            assert (told["application"], told["stage"]) == ("nakadi", "test"), name


@pytest.fixture(scope="session")
def review_reports(deployment):
    written = json.loads((deployment.folder / "validation-report.json").read_text())
    return {each["pluginName"]: each for each in written["pluginReports"]}


def test_rules_that_are_not_followed_have_reasons(review_reports):
    """The review leaves no finding open, and each exception has a reason."""
    for report in review_reports.values():
        assert report["conclusion"] == "success"
        assert report["violations"] == []
        assert all(len(each["reason"]) > 20 for each in report["suppressedViolations"])


def test_no_reason_is_left_over(review_reports):
    """The list has no reason that is no longer needed."""
    used = {each["reason"] for each in review_reports["AwsSolutions"]["suppressedViolations"]}

    exceptions = (
        *(*review.DATA, *review.SERVING, *review.STREAMS, *review.STREAMING),
        *review.analytics_exceptions(Context()),
    )
    assert used == {each.reason for each in exceptions}


def test_what_breaks_a_rule_is_not_deployed(tmp_path):
    """The review rejects a queue that can be reached without TLS."""
    app = cdk.App(outdir=str(tmp_path), analytics_reporting=False)
    stack = cdk.Stack(app, "careless")
    sqs.Queue(stack, "Queue")
    review.review(app, Context(stage="test"), [review.ReviewedScope(place=stack, exceptions=())])

    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    [written] = json.loads((Path(tmp_path) / "validation-report.json").read_text())["pluginReports"]
    assert "AwsSolutions-SQS4" in {each["ruleName"] for each in written["violations"]}
