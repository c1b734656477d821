"""Container images: those that a deployment builds, and existing ones in ECR."""

from __future__ import annotations

import re

from aws_cdk import Aws
from aws_cdk import aws_ecr as ecr
from constructs import Construct

from nakadi_cdk.assets import assets_folder

# The Dockerfiles. Their context is `assets_folder()`.
STREAMING_IMAGE = "services/streaming/Dockerfile"
QUERIES_IMAGE = "functions/queries/Dockerfile"


def image_ignores(dockerfile: str) -> list[str]:
    """The patterns of files that an image does not need, which Docker finds beside its Dockerfile."""
    return (assets_folder() / f"{dockerfile}.dockerignore").read_text().splitlines()


def repository_and_tag(scope: Construct, image: re.Match[str]) -> tuple[ecr.IRepository, str]:
    """The repository of an existing image in ECR, and the image's tag or digest. `image` matches `ECR_IMAGE`."""
    arn = "arn:{partition}:ecr:{region}:{account}:repository/{repository}".format(
        partition=Aws.PARTITION, **image.groupdict()
    )
    repository = ecr.Repository.from_repository_attributes(
        scope, "Images", repository_arn=arn, repository_name=image["repository"]
    )
    return repository, image["tag"]
