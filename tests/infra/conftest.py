"""The deployment, synthesized once for all tests."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.templates import Deployment

STAGE = "test"
CONTEXT = {
    "stage": STAGE,
    "domain": "events.example.org",
    "certificate_arn": "arn:aws:acm:eu-central-1:123456789012:certificate/00000000-0000-0000-0000-000000000000",
    "auth_issuer": "https://issuer.example",
    "alarm_email": "somebody@example.org",
    "dedicated_streams": "orders=2",
}


@pytest.fixture(scope="session")
def deployment(tmp_path_factory):
    """What `cdk synth` writes; it raises for whatever the review does not let pass."""
    folder = tmp_path_factory.mktemp("cdk.out")
    # Where the machine has no node, it is beside the interpreter.
    os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)
    from infra.app import application  # noqa: PLC0415  # it starts node: not before it is needed

    _with_scripts(tmp_path_factory)
    application(outdir=str(folder), context=CONTEXT).synth()
    return Deployment(folder, f"nakadi-{STAGE}")


@pytest.fixture(scope="session")
def data(deployment):
    return deployment.data


@pytest.fixture(scope="session")
def serving(deployment):
    return deployment.serving


@pytest.fixture(scope="session")
def analytics(deployment):
    return deployment.analytics


def _with_scripts(tmp_path_factory):
    """Jobs whose scripts are still to come have stand-ins."""
    from infra import analytics  # noqa: PLC0415  # as above

    names = [job.name for job in analytics.jobs(8, 6)]
    if not all((analytics.SCRIPTS / f"{name}.py").exists() for name in names):
        analytics.SCRIPTS = tmp_path_factory.mktemp("scripts")
        for name in names:
            (analytics.SCRIPTS / f"{name}.py").write_text(f'"""{name}"""\n')
