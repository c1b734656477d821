"""Where the code is that gets deployed: functions, layers, jobs, and the makings of the streaming service's image."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_lambda as lambda_

from nakadi.http import console

PACKAGED = Path(__file__).parent / "deployed"

# A wheel carries them beside this file; in a checkout they are used where they are written.
ASSETS = PACKAGED if PACKAGED.is_dir() else Path(__file__).parents[1]

# The built console: a wheel of the package has it, and in a checkout it is where `make console` builds it.
CONSOLE = (
    console.BUILT_CONSOLE_FOLDER if console.BUILT_CONSOLE_FOLDER.is_dir() else ASSETS / ".cache" / "console" / "built"
)

COMPILED = ["**/__pycache__", "**/*.pyc"]

# What the image is made of, as .dockerignore says it too; a wheel cannot carry that file beside a folder of its own.
IMAGE_IGNORES = ["*", "!layers/nakadi/python/nakadi", "!services/streaming", "**/__pycache__"]

PACKAGE = ASSETS / "layers" / "nakadi"
DEPENDENCIES = ASSETS / "layers" / "dependencies"
KAFKA = ASSETS / "layers" / "kafka"
BUILD = ASSETS / "scripts" / "build-layers"

# Only named, never started: layers are built by what is on this machine.
NO_IMAGE = "public.ecr.aws/docker/library/python:3.13-slim"


def layer_of_package() -> lambda_.Code:
    """The package, compiled while the app is synthesized."""
    return _built(PACKAGE, cdk.FileSystem.fingerprint(str(PACKAGE), exclude=COMPILED), "--package")


def layer_of_dependencies() -> lambda_.Code:
    """As `make` built it, or else built while the app is synthesized, of wheels that are checked by their hashes."""
    if (DEPENDENCIES / "python").is_dir():
        return lambda_.Code.from_asset(str(DEPENDENCIES), exclude=["requirements.*"])
    return _built(DEPENDENCIES, (DEPENDENCIES / "requirements.txt").read_text(), "--into")


def layer_of_kafka() -> lambda_.Code:
    """The client library of Kafka, built while the app is synthesized."""
    return _built(KAFKA, (KAFKA / "requirements.txt").read_text(), "--kafka")


def _built(folder: Path, made_of: str, option: str) -> lambda_.Code:
    """A layer that `build-layers` makes. It is made anew when there is something else to make it of, or another Python
    to compile it."""
    parts = (made_of, BUILD.read_text(), _compiler())
    return lambda_.Code.from_asset(
        str(folder),
        exclude=[*COMPILED, "requirements.*"],
        asset_hash=hashlib.sha256("\0".join(parts).encode()).hexdigest(),
        asset_hash_type=cdk.AssetHashType.CUSTOM,
        bundling=cdk.BundlingOptions(image=cdk.DockerImage.from_registry(NO_IMAGE), local=_Built(option)),
    )


@cache
def _compiler() -> str:
    asked = subprocess.run(  # noqa: S603  # a script of our own
        [sys.executable, str(BUILD), "--compiler"], check=True, stdout=subprocess.PIPE, text=True
    )
    # Which version it is matters, and not where it stands.
    return asked.stdout.strip().rpartition(" ")[2]


@jsii.implements(cdk.ILocalBundling)
class _Built:
    def __init__(self, option: str) -> None:
        self._option = option

    def try_bundle(self, output_dir: str, options: Any = None, **_: Any) -> bool:  # noqa: ARG002  # the CDK calls it so
        # What is printed here would be mixed into what the CDK reads from this process.
        subprocess.run(  # noqa: S603  # a script of our own
            [sys.executable, str(BUILD), self._option, str(Path(output_dir, "python"))], check=True, stdout=sys.stderr
        )
        return True
