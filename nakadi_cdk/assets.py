"""The code to deploy: functions, layers, jobs, and the sources of the streaming service's image."""

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

# An installed wheel has the other packages beside this one; a checkout has the folders of `assets_folder` here.
IMPORT_ROOT = Path(__file__).parents[1]
WHEEL_ASSETS = Path(__file__).parent / "deployed"

# Folders below `assets_folder()`, at the same paths as in the checkout.
PACKAGE = Path("layers/nakadi/python")
DEPENDENCIES = Path("layers/dependencies")
KAFKA = Path("layers/kafka")
JOBS = Path("glue_jobs")

COMPILED_FILES = ["**/__pycache__", "**/*.pyc"]

# The gateway serves the console, so functions do not need its files.
EXCLUDED_FILES = ["__pycache__", "*.pyc", "console_built"]

# The CDK requires an image but never starts it: this machine builds the layers.
PLACEHOLDER_IMAGE = "public.ecr.aws/docker/library/python:3.13-slim"


@cache
def assets_folder() -> Path:
    """The folder with everything to deploy, laid out like a checkout. In a checkout it is the checkout itself.

    A wheel installs each package once, at its import path. The CDK needs separate folders, so this copies the packages
    without compiled files, which would change the hashes of assets.
    """
    if not WHEEL_ASSETS.is_dir():
        return IMPORT_ROOT
    folder = _create_copy_folder()
    for source, target in (
        (WHEEL_ASSETS, Path()),
        (IMPORT_ROOT / "nakadi", PACKAGE / "nakadi"),
        (IMPORT_ROOT / "nakadi_jobs", JOBS / "nakadi_jobs"),
        (IMPORT_ROOT / "nakadi_client", Path("nakadi_client")),
        (IMPORT_ROOT / "nakadi_sql", Path("nakadi_sql")),
    ):
        shutil.copytree(source, folder / target, ignore=shutil.ignore_patterns(*EXCLUDED_FILES), dirs_exist_ok=True)
    return folder


def _create_copy_folder() -> Path:
    """Create the folder in the CDK's output, which may refer to assets instead of copying them.

    An app that runs without the CDK's command line gets a temporary folder until it ends.
    """
    if "CDK_OUTDIR" in os.environ:
        folder = Path(os.environ["CDK_OUTDIR"], "nakadi-deployed")
        shutil.rmtree(folder, ignore_errors=True)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="nakadi-cdk-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def console_folder() -> Path:
    """The folder of the built console: in the wheel, or where `make console` puts it in a checkout."""
    built = console.BUILT_CONSOLE_FOLDER
    return built if built.is_dir() else IMPORT_ROOT / ".cache" / "console" / "built"


def package_layer_code() -> lambda_.Code:
    """The code of the layer with the package, which synthesis compiles."""
    folder = assets_folder() / PACKAGE.parent
    return _bundle_layer(folder, cdk.FileSystem.fingerprint(str(folder), exclude=COMPILED_FILES), "--package")


def dependencies_layer_code() -> lambda_.Code:
    """The code of the layer with the dependencies, which `make` or synthesis builds from wheels checked by hash."""
    folder = assets_folder() / DEPENDENCIES
    if (folder / "python").is_dir():
        return lambda_.Code.from_asset(str(folder), exclude=["requirements.*"])
    return _bundle_layer(folder, (folder / "requirements.txt").read_text(), "--into")


def kafka_layer_code() -> lambda_.Code:
    """The code of the layer with the Kafka client library, which synthesis builds."""
    folder = assets_folder() / KAFKA
    return _bundle_layer(folder, (folder / "requirements.txt").read_text(), "--kafka")


def _bundle_layer(folder: Path, sources: str, option: str) -> lambda_.Code:
    """The code of a layer. `build-layers` builds it, again whenever `sources` or the Python that compiles it change."""
    parts = (sources, _build_script().read_text(), _compiler_version())
    return lambda_.Code.from_asset(
        str(folder),
        exclude=[*COMPILED_FILES, "requirements.*"],
        asset_hash=hashlib.sha256("\0".join(parts).encode()).hexdigest(),
        asset_hash_type=cdk.AssetHashType.CUSTOM,
        bundling=cdk.BundlingOptions(
            image=cdk.DockerImage.from_registry(PLACEHOLDER_IMAGE), local=_LayerBundling(option)
        ),
    )


def _build_script() -> Path:
    return assets_folder() / "scripts" / "build-layers"


@cache
def _compiler_version() -> str:
    result = subprocess.run(  # noqa: S603  # a script of our own
        [sys.executable, str(_build_script()), "--compiler"], check=True, stdout=subprocess.PIPE, text=True
    )
    # The version matters, the path does not.
    return result.stdout.strip().rpartition(" ")[2]


@jsii.implements(cdk.ILocalBundling)
class _LayerBundling:
    def __init__(self, option: str) -> None:
        self._option = option

    def try_bundle(self, output_dir: str, options: Any = None, **_: Any) -> bool:  # noqa: ARG002  # the CDK calls it so
        # The CDK reads this process's standard output, so the script must not print to it.
        subprocess.run(  # noqa: S603  # a script of our own
            [sys.executable, str(_build_script()), self._option, str(Path(output_dir, "python"))],
            check=True,
            stdout=sys.stderr,
        )
        return True
