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
}


@pytest.fixture(scope="session")
def deployment(tmp_path_factory):
    """What `cdk synth` writes; it raises for whatever the review does not let pass."""
    folder = tmp_path_factory.mktemp("cdk.out")
    # Where the machine has no node, it is beside the interpreter.
    os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)
    from infra.app import application  # noqa: PLC0415  # it starts node: not before it is needed

    application(outdir=str(folder), context=CONTEXT).synth()
    return Deployment(folder, f"nakadi-{STAGE}")


@pytest.fixture(scope="session")
def data(deployment):
    return deployment.data


@pytest.fixture(scope="session")
def serving(deployment):
    return deployment.serving
