"""The API: one REST API made of our own description, its operations answered by functions and by the streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from aws_cdk import Aws, Duration, Fn, RemovalPolicy
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_wafv2 as wafv2
from constructs import Construct

from nakadi.app.broker import open_broker
from nakadi.app.routes import PUBLIC_PATH_PATTERN, STREAMING_AREAS, make_routes
from nakadi.app.settings import Settings
from nakadi.openapi import gateway_document
from nakadi_cdk.console import Console, ConsoleSource
from nakadi_cdk.gateway_responses import asleep, gateway_responses
from nakadi_cdk.needs import NEEDS
from nakadi_cdk.pages import NOTHING_THERE, PAGES, Pages
from nakadi_cdk.streaming import LISTENING, Streaming

# Part of the URL only where there is no domain.
STAGE = "api"
STREAMS = "streaming"
GATEWAY = "gateway"

# What is not described is answered too: unknown paths by a Problem, HEAD, and a method that a path does not have. Below
# /health no token is needed.
ANY = "x-amazon-apigateway-any-method"
EVERYTHING_ELSE = {"/": "admin", "/{proxy+}": "admin"}

# Whether the streaming service is there, asked over the link and answered by the service as it answers the balancer.
OVER_THE_LINK = "/health/streams"

# The most that the gateway lets a streamed response take.
STREAM_MS = 900_000

AUTHORIZER = "token"

# What does not look like a signed token is refused by the gateway itself, and occupies no function.
SIGNED = r"^[Bb][Ee][Aa][Rr][Ee][Rr] +[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+ *$"

# The paths that need no token, with a limit of their own: they must not take functions from those who have one.
PUBLIC_PATHS = ("/health", OVER_THE_LINK, "/ready", "/docs", "/openapi.json")


class Unserved(Exception):
    """Raised for an operation that neither a function nor the streaming service answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """For all clients together. An authorizer's word is kept for some seconds, also when a token expires meanwhile."""

    requests_per_second: int
    requests_burst: int
    public_requests_per_second: int
    authorizer_cache_seconds: int
    web_acl_arn: str = ""
    detailed_metrics: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    name: str
    certificate_arn: str


class Api(Construct):
    def __init__(  # noqa: PLR0913  # each is a choice of its own
        self,
        scope: Construct,
        name: str,
        *,
        api_name: str,
        functions: Mapping[str, lambda_.IFunction],
        streaming: Streaming | None,
        limits: Limits,
        log_retention: logs.RetentionDays,
        domain: Domain | None = None,
        console: ConsoleSource | None = None,
    ) -> None:
        super().__init__(scope, name)
        self._functions = functions
        self._streaming = streaming
        self._cache_seconds = limits.authorizer_cache_seconds
        self._pages = Pages(self, "Pages", host=domain.name if domain else "")
        self._console = (
            Console(self, "Console", source=console, path_prefix="" if domain else f"/{STAGE}") if console else None
        )
        self.access_log = logs.LogGroup(
            self, "AccessLog", retention=log_retention, removal_policy=RemovalPolicy.DESTROY
        )
        self.api = apigateway.SpecRestApi(
            self,
            "Rest",
            rest_api_name=api_name,
            api_definition=apigateway.ApiDefinition.from_inline(self._definition(gateway_document())),
            endpoint_types=[apigateway.EndpointType.REGIONAL],
            disable_execute_api_endpoint=bool(domain),
            # Bodies come to the functions as they were sent: these know more ways to unpack them than the gateway does.
            binary_media_types=["*/*"],
            cloud_watch_role=True,
            deploy_options=apigateway.StageOptions(
                stage_name=STAGE,
                throttling_rate_limit=limits.requests_per_second,
                throttling_burst_limit=limits.requests_burst,
                # Each method has metrics of its own then, each of which is paid for.
                metrics_enabled=limits.detailed_metrics,
                tracing_enabled=True,
                logging_level=apigateway.MethodLoggingLevel.ERROR,
                access_log_destination=apigateway.LogGroupLogDestination(self.access_log),
                access_log_format=apigateway.AccessLogFormat.custom(json.dumps(ACCESS_LOG)),
                method_options=_slower_for_everybody(limits),
            ),
        )
        if limits.web_acl_arn:
            stage = self.api.deployment_stage
            wafv2.CfnWebACLAssociation(self, "Firewall", resource_arn=stage.stage_arn, web_acl_arn=limits.web_acl_arn)
        self._let_it_invoke()
        self.url = f"https://{domain.name}/" if domain else self.api.url
        self.domain_target = ""
        if domain:
            self._at(domain)

    def keep_link_awake(self, housekeeping: lambda_.Function) -> None:
        """A link that nothing is sent over for 60 days is taken apart, and streams fail until it is there again."""
        target = targets.LambdaFunction(
            housekeeping, event=events.RuleTargetInput.from_object({"ask": f"{self.url}{OVER_THE_LINK.lstrip('/')}"})
        )
        events.Rule(
            self,
            "EveryWeek",
            description="Keeps the way to the streaming service open where there are no streams",
            schedule=events.Schedule.rate(Duration.days(7)),
            targets=[target],
        )

    def _let_it_invoke(self) -> None:
        for function in self._functions.values():
            function.add_permission(
                "Api",
                principal=iam.ServicePrincipal("apigateway.amazonaws.com"),
                source_arn=f"arn:{Aws.PARTITION}:execute-api:{Aws.REGION}:{Aws.ACCOUNT_ID}:{self.api.rest_api_id}/*",
            )

    def _at(self, domain: Domain) -> None:
        """At the root of its host name: clients drop prefixes."""
        certificate = acm.Certificate.from_certificate_arn(self, "Certificate", domain.certificate_arn)
        name = apigateway.DomainName(
            self,
            "Domain",
            domain_name=domain.name,
            certificate=certificate,
            endpoint_type=apigateway.EndpointType.REGIONAL,
            security_policy=apigateway.SecurityPolicy.TLS_1_2,
            mapping=self.api,
        )
        self.domain_target = name.domain_name_alias_domain_name

    # The description, completed

    def _definition(self, described: Mapping[str, Any]) -> dict[str, Any]:
        answering = who_answers()
        paths = {path: self._path(path, item, answering) for path, item in described["paths"].items()}
        rest = {path: {ANY: self._operation(path, "any", {}, function)} for path, function in EVERYTHING_ELSE.items()}
        nothing_there = {"parameters": _parameters(NOTHING_THERE), "security": [], **self._pages.nothing_there()}
        rest[NOTHING_THERE] = {ANY: nothing_there}
        rest[OVER_THE_LINK] = {
            "get": self._operation(OVER_THE_LINK, "get", {}, STREAMS),
            ANY: {**nothing_there, "parameters": []},
        }
        for path, operations in self._console.paths() if self._console else ():
            rest[path] = _public(path, operations)
        return {
            **described,
            "paths": {**paths, **rest},
            "components": {"securitySchemes": {AUTHORIZER: self._authorizer()}},
            "x-amazon-apigateway-gateway-responses": gateway_responses(),
        }

    def _path(self, path: str, item: Mapping[str, Any], answering: Mapping[str, str]) -> dict[str, Any]:
        if path in PAGES.values():
            return self._page(path, item)
        operations = {
            method: self._operation(path, method, operation, _answering(operation["operationId"], answering))
            for method, operation in item.items()
        }
        functions = [answering[each["operationId"]] for each in item.values()]
        rest = next((function for function in functions if function != STREAMS), EVERYTHING_ELSE["/"])
        alike = {"parameters": next(iter(item.values())).get("parameters", [])}
        if "get" in item and answering[item["get"]["operationId"]] == STREAMS:
            # What would become of a stream is known only to who would serve it.
            operations["head"] = self._operation(path, "head", alike, STREAMS)
        return {**operations, ANY: self._operation(path, "any", alike, rest)}

    def _page(self, path: str, item: Mapping[str, Any]) -> dict[str, Any]:
        return {
            ANY if method == "any" else method: {**item.get(method, {}), "parameters": [], "security": [], **operation}
            for method, operation in self._pages.operations(path).items()
        }

    def _operation(self, path: str, method: str, operation: Mapping[str, Any], answering: str) -> dict[str, Any]:
        parameters = operation.get("parameters", _parameters(path))
        integration: Mapping[str, Any]
        responses: Mapping[str, Any] = {"200": {"description": "As the broker answers"}}
        if answering != STREAMS:
            integration = self._proxy(answering)
        elif self._streaming:
            integration = self._stream(self._streaming, path, method, parameters)
        else:
            integration, responses = asleep()
        return {
            **operation,
            "parameters": parameters,
            "responses": responses,
            "security": [] if PUBLIC_PATH_PATTERN.fullmatch(path) else [{AUTHORIZER: []}],
            "x-amazon-apigateway-integration": integration,
        }

    def _proxy(self, function: str) -> dict[str, Any]:
        return {"type": "aws_proxy", "httpMethod": "POST", "uri": _invocation(self._functions[function])}

    def _stream(
        self, streaming: Streaming, path: str, method: str, parameters: list[Mapping[str, Any]]
    ) -> dict[str, Any]:
        names = [each["name"] for each in parameters]
        return {
            "type": "http_proxy",
            "httpMethod": method.upper(),
            "uri": f"http://{streaming.load_balancer.load_balancer_dns_name}:{LISTENING}{path}",
            "connectionType": "VPC_LINK",
            "connectionId": streaming.vpc_link.vpc_link_id,
            # A page of AWS wants a listener here. Its API, its examples and its own constructs take the balancer.
            "integrationTarget": streaming.load_balancer.load_balancer_arn,
            "responseTransferMode": "STREAM",
            "timeoutInMillis": STREAM_MS,
            "requestParameters": {f"integration.request.path.{name}": f"method.request.path.{name}" for name in names},
        }

    def _authorizer(self) -> dict[str, Any]:
        return {
            "type": "apiKey",
            "name": "Authorization",
            "in": "header",
            "x-amazon-apigateway-authtype": "custom",
            "x-amazon-apigateway-authorizer": {
                "type": "token",
                "authorizerUri": _invocation(self._functions["authorizer"]),
                "authorizerResultTtlInSeconds": self._cache_seconds,
                "identityValidationExpression": SIGNED,
            },
        }


def _public(path: str, operations: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        ANY if method == "any" else method: {"parameters": _parameters(path), "security": [], **operation}
        for method, operation in operations.items()
    }


def _slower_for_everybody(limits: Limits) -> Mapping[str, apigateway.MethodDeploymentOptions]:
    few = apigateway.MethodDeploymentOptions(
        throttling_rate_limit=limits.public_requests_per_second,
        throttling_burst_limit=2 * limits.public_requests_per_second,
        metrics_enabled=limits.detailed_metrics,
        logging_level=apigateway.MethodLoggingLevel.ERROR,
    )
    return {f"{path}/GET": few for path in PUBLIC_PATHS}


def who_answers() -> Mapping[str, str]:
    """Which function answers each operation, or the streaming service, as their routes say, or the gateway itself."""
    with closing(open_broker(Settings())) as broker:
        areas = {**{name: needs.areas for name, needs in NEEDS.items()}, STREAMS: STREAMING_AREAS}
        routed = {route.operation: name for name, served in areas.items() for route in make_routes(broker, *served)}
    return {**routed, **dict.fromkeys(PAGES, GATEWAY)}


def _answering(operation: str, answering: Mapping[str, str]) -> str:
    if operation not in answering:
        raise Unserved(operation)
    return answering[operation]


def _parameters(path: str) -> list[Mapping[str, Any]]:
    names = [part.strip("{}+") for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _invocation(function: lambda_.IFunction) -> str:
    invoked: str = Fn.sub(
        "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path/2015-03-31/functions/${Function}/invocations",
        {"Function": function.function_arn},
    )
    return invoked


ACCESS_LOG = {
    "time": "$context.requestTime",
    "request": "$context.requestId",
    "trace": "$context.xrayTraceId",
    "subject": "$context.authorizer.subject",
    "address": "$context.identity.sourceIp",
    "agent": "$context.identity.userAgent",
    "method": "$context.httpMethod",
    "path": "$context.path",
    "operation": "$context.resourcePath",
    "status": "$context.status",
    "bytes": "$context.responseLength",
    "milliseconds": "$context.responseLatency",
    "integration_milliseconds": "$context.integrationLatency",
    "error": "$context.error.responseType",
}
