"""Where the code is that gets deployed: functions, layers, jobs, and the makings of the streaming service's image."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_lambda as lambda_

from nakadi.http import console

# A wheel and a checkout have the package beside this one, or where Lambda wants it.
INSTALLED = Path(__file__).parents[1]
PACKAGED = Path(__file__).parent / "deployed"

# Below `assets()`, in the order of the checkout.
PACKAGE = Path("layers/nakadi/python")
DEPENDENCIES = Path("layers/dependencies")
KAFKA = Path("layers/kafka")
JOBS = Path("glue_jobs")

COMPILED = ["**/__pycache__", "**/*.pyc"]

# The gateway answers with the console; functions have no use for it.
NOT_DEPLOYED = ["__pycache__", "*.pyc", "console_built"]

# What the image is made of, as .dockerignore says it too; a wheel cannot carry that file beside a folder of its own.
IMAGE_IGNORES = ["*", "!layers/nakadi/python/nakadi", "!services/streaming", "**/__pycache__"]

# Only named, never started: layers are built by what is on this machine.
NO_IMAGE = "public.ecr.aws/docker/library/python:3.13-slim"


@cache
def assets() -> Path:
    """The folder with everything that is deployed, laid out as in a checkout, which itself is such a folder.

    A wheel has the packages once, where they are imported from. The CDK wants folders of its own for them, so they are
    copied, without what an installer has compiled: the hashes of assets must not depend on it.
    """
    if not PACKAGED.is_dir():
        return INSTALLED
    folder = _folder_of_copy()
    for source, target in (
        (PACKAGED, Path()),
        (INSTALLED / "nakadi", PACKAGE / "nakadi"),
        (INSTALLED / "nakadi_jobs", JOBS / "nakadi_jobs"),
    ):
        shutil.copytree(source, folder / target, ignore=shutil.ignore_patterns(*NOT_DEPLOYED), dirs_exist_ok=True)
    return folder


def _folder_of_copy() -> Path:
    """Within the output of the CDK, which may refer to it when assets are not staged; it is replaced by the next run.

    An app that is started without the CDK's command line has a temporary folder, until it ends.
    """
    if "CDK_OUTDIR" in os.environ:
        folder = Path(os.environ["CDK_OUTDIR"], "nakadi-deployed")
        shutil.rmtree(folder, ignore_errors=True)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="nakadi-cdk-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def console_folder() -> Path:
    """Where the built console is: a wheel has it, and in a checkout `make console` puts it there."""
    built = console.BUILT_CONSOLE_FOLDER
    return built if built.is_dir() else INSTALLED / ".cache" / "console" / "built"


def layer_of_package() -> lambda_.Code:
    """The package, compiled while the app is synthesized."""
    folder = assets() / PACKAGE.parent
    return _built(folder, cdk.FileSystem.fingerprint(str(folder), exclude=COMPILED), "--package")


def layer_of_dependencies() -> lambda_.Code:
    """As `make` built it, or else built while the app is synthesized, of wheels that are checked by their hashes."""
    folder = assets() / DEPENDENCIES
    if (folder / "python").is_dir():
        return lambda_.Code.from_asset(str(folder), exclude=["requirements.*"])
    return _built(folder, (folder / "requirements.txt").read_text(), "--into")


def layer_of_kafka() -> lambda_.Code:
    """The client library of Kafka, built while the app is synthesized."""
    folder = assets() / KAFKA
    return _built(folder, (folder / "requirements.txt").read_text(), "--kafka")


def _built(folder: Path, made_of: str, option: str) -> lambda_.Code:
    """A layer that `build-layers` makes. It is made anew when there is something else to make it of, or another Python
    to compile it."""
    parts = (made_of, _build().read_text(), _compiler())
    return lambda_.Code.from_asset(
        str(folder),
        exclude=[*COMPILED, "requirements.*"],
        asset_hash=hashlib.sha256("\0".join(parts).encode()).hexdigest(),
        asset_hash_type=cdk.AssetHashType.CUSTOM,
        bundling=cdk.BundlingOptions(image=cdk.DockerImage.from_registry(NO_IMAGE), local=_Built(option)),
    )


def _build() -> Path:
    return assets() / "scripts" / "build-layers"


@cache
def _compiler() -> str:
    asked = subprocess.run(  # noqa: S603  # a script of our own
        [sys.executable, str(_build()), "--compiler"], check=True, stdout=subprocess.PIPE, text=True
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
            [sys.executable, str(_build()), self._option, str(Path(output_dir, "python"))],
            check=True,
            stdout=sys.stderr,
        )
        return True
