"""What the gateway answers without a function: pages that need no token must not take functions from who has one.

They are what the broker itself answers, asked while the app is synthesized.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from aws_cdk import Aws, Fn, Stage
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from nakadi.app.broker import open_broker
from nakadi.app.settings import Settings
from nakadi.http.message import PROBLEM_MEDIA_TYPE, Request, Response
from nakadi.http.problem import RETRY_AFTER_SECONDS, plain_problem_members
from nakadi_cdk.gateway_responses import SAID_OF_BODIES

AREA = "monitoring"
METHODS = ("get", "head", "options")

# Paths by the operation that is described for them. Readiness is not here: only a function knows it.
PAGES: Mapping[str, str] = {"get_health": "/health", "get_docs": "/docs", "get_openapi": "/openapi.json"}
NOTHING_THERE = "/health/{proxy+}"

# A page says how to ask with curl, and is the same for all, wherever they found it.
SOMEWHERE = "your-broker"

# What is longer is an object of S3: a mapping has 300 KB, and the whole deployment a megabyte.
MOST_TOLD = 10_000

# In place of it, the gateway says which one it was.
UNKNOWN_METHOD = "$context.httpMethod"

# It stands in the page itself, where it cannot say who may frame it.
POLICY = "content-security-policy"
UNFRAMED = {"x-frame-options": "DENY"}

Operation = Mapping[str, Any]


class Pages(Construct):
    """Small answers come from the gateway itself, and large ones are objects of S3 that it fetches."""

    def __init__(self, scope: Construct, name: str, *, host: str = "") -> None:
        super().__init__(scope, name)
        self._host = host or SOMEWHERE
        self._role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("apigateway.amazonaws.com"))
        with closing(open_broker(Settings())) as broker:
            application = broker.make_application(AREA)
            self._answers = {
                (path, method): application.answer(self._request(path, method))
                for path in PAGES.values()
                for method in (*METHODS, "any")
            }

    def operations(self, path: str) -> Mapping[str, Operation]:
        """Each method of a page; `any` are those that it does not have."""
        kept = self._kept(path, self._answer(path, "get"))
        return {method: self._operation(path, method, kept) for method in (*METHODS, "any")}

    def nothing_there(self) -> Operation:
        problem = orjson.dumps(plain_problem_members(HTTPStatus.NOT_FOUND, "There is nothing at this path"))
        return mock(Response(HTTPStatus.NOT_FOUND.value, {"content-type": PROBLEM_MEDIA_TYPE}, problem))

    def _request(self, path: str, method: str) -> Request:
        # The answer to a method that is not known here has its name in it, which the gateway knows.
        name = UNKNOWN_METHOD if method == "any" else method.upper()
        return Request(method=name, path=path, target=path, headers={"host": self._host, "x-forwarded-proto": "https"})

    def _answer(self, path: str, method: str) -> Response:
        answer = self._answers[path, method]
        assert isinstance(answer, Response)
        return answer

    def _kept(self, path: str, answer: Response) -> s3_assets.Asset | None:
        if len(answer.body) <= MOST_TOLD:
            return None
        name = path.strip("/").replace(".", "-")
        # Where the assembly is, since an app may refer to files instead of copying them.
        file = Path(Stage.of(self).asset_outdir, "pages", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self_contained(answer))
        asset = s3_assets.Asset(self, name, path=str(file))
        let_read(self._role, asset)
        return asset

    def _operation(self, path: str, method: str, kept: s3_assets.Asset | None) -> Operation:
        answer = self._answer(path, method)
        if kept is None or method not in ("get", "head"):
            return mock(answer)
        return stored(answer, kept, method, self._role)


def let_read(role: iam.Role, asset: s3_assets.Asset) -> None:
    """Let a role of the gateway's fetch one object."""
    object_ = f"arn:{Aws.PARTITION}:s3:::{asset.s3_bucket_name}/{asset.s3_object_key}"
    role.add_to_policy(iam.PolicyStatement(actions=["s3:GetObject"], resources=[object_]))


def mock(answer: Response, template_head: str = "") -> Operation:
    """An operation whose answer stands in the API; `template_head` is what its template does before the body."""
    template = orjson.dumps({"statusCode": answer.status}).decode()
    integration = {
        "type": "mock",
        # The API takes every body for bytes, and templates are for text only.
        "contentHandling": "CONVERT_TO_TEXT",
        "passthroughBehavior": "never",
        "requestTemplates": dict.fromkeys(SAID_OF_BODIES, template),
        "responses": {
            "default": {
                **_told(answer.status, _headers(answer)),
                "responseTemplates": {"application/json": template_head + answer.body.decode()},
            }
        },
    }
    return {"responses": _declared([answer.status], _headers(answer)), "x-amazon-apigateway-integration": integration}


def stored(answer: Response, kept: s3_assets.Asset, method: str, role: iam.Role) -> Operation:
    """An operation whose answer is an object of S3."""
    headers, unavailable = _headers(answer), {"content-type": PROBLEM_MEDIA_TYPE, "retry-after": RETRY_AFTER_SECONDS}
    problem = orjson.dumps(
        plain_problem_members(HTTPStatus.SERVICE_UNAVAILABLE, "The page cannot be fetched at the moment")
    ).decode()
    integration = {
        "type": "aws",
        "httpMethod": method.upper(),
        "uri": Fn.sub(
            "arn:${AWS::Partition}:apigateway:${AWS::Region}:s3:path/${Bucket}/${Key}",
            {"Bucket": kept.s3_bucket_name, "Key": kept.s3_object_key},
        ),
        "credentials": role.role_arn,
        "responses": {
            "200": _told(200, headers),
            "default": {
                **_told(503, unavailable),
                "contentHandling": "CONVERT_TO_TEXT",
                "responseTemplates": dict.fromkeys(("application/json", "application/xml"), problem),
            },
        },
    }
    declared = _declared([200, 503], {**headers, **unavailable})
    return {"responses": declared, "x-amazon-apigateway-integration": integration}


def _headers(answer: Response) -> Mapping[str, str]:
    """Those that are the same for all. The policy has quotes, which the gateway puts around values, and is left out."""
    left_out = {"x-flow-id", "content-length", POLICY}
    told = {name: value for name, value in answer.headers.items() if name not in left_out}
    return {**told, **UNFRAMED} if POLICY in answer.headers else told


def self_contained(answer: Response) -> bytes:
    """The body of an answer, with its policy in it if it has one."""
    policy = answer.headers.get(POLICY)
    if not policy:
        return answer.body
    meta = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
    return answer.body.replace(b"<head>", b"<head>" + meta.encode(), 1)


def _told(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    values = {f"method.response.header.{name}": f"'{value}'" for name, value in headers.items()}
    return {
        "statusCode": str(status),
        "responseParameters": {**values, "method.response.header.x-flow-id": "context.requestId"},
    }


def _declared(statuses: list[int], headers: Mapping[str, str]) -> Operation:
    shown = {name: {"schema": {"type": "string"}} for name in (*headers, "x-flow-id")}
    return {str(status): {"description": "As the broker answers", "headers": shown} for status in statuses}
