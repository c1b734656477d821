"""The REST API of API Gateway, generated from the OpenAPI description. Functions and the streaming service answer its
requests."""

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

from nakadi.app.authentication import PUBLIC_PATH_PATTERN
from nakadi.app.broker import open_broker
from nakadi.app.routes import STREAMING_AREAS, make_routes
from nakadi.app.settings import Settings
from nakadi.openapi import gateway_document
from nakadi_cdk.console import Console, ConsoleSource
from nakadi_cdk.gateway_responses import asleep_integration, gateway_responses
from nakadi_cdk.needs import NEEDS, QUERIES
from nakadi_cdk.pages import NOT_FOUND_PATH, PAGES, Pages
from nakadi_cdk.streaming import LISTENER_PORT, Streaming

# The URL contains the stage name only if the API has no domain.
STAGE = "api"
STREAMS = "streaming"
GATEWAY = "gateway"

# The broker also answers what the description leaves out: unknown paths, HEAD, and unsupported methods.
ANY_METHOD = "x-amazon-apigateway-any-method"
FALLBACK_FUNCTIONS = {"/": "admin", "/{proxy+}": "admin"}

# Requests to this path cross the link to the streaming service, which answers them like the balancer's health checks.
STREAMS_HEALTH_PATH = "/health/streams"

# API Gateway's longest duration of a streamed response.
MAX_STREAM_MS = 900_000

AUTHORIZER_NAME = "token"

# The stage variable with the URL of the API.
URL_VARIABLE = "broker_url"

# The gateway itself refuses anything that does not look like a signed token, so it occupies no function.
BEARER_PATTERN = r"^[Bb][Ee][Aa][Rr][Ee][Rr] +[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+ *$"

# Paths that need no token have their own limit, so they cannot take functions from clients with a token.
PUBLIC_PATHS = ("/health", STREAMS_HEALTH_PATH, "/ready", "/docs", "/openapi.json")


class UnservedOperation(Exception):
    """Raised for an operation that neither a function nor the streaming service answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the requests of all clients together, and the seconds for which the gateway reuses the authorizer's
    decision on a token. `queries_per_second` is 0 if there are no queries.
    """

    requests_per_second: int
    requests_burst: int
    public_requests_per_second: int
    authorizer_cache_seconds: int
    queries_per_second: int = 0
    web_acl_arn: str = ""
    detailed_metrics: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A host name and the certificate for it."""

    name: str
    certificate_arn: str


class Api(Construct):
    """The REST API with its stage, access log, authorizer and optional domain."""

    def __init__(  # noqa: PLR0913  # each is a separate choice
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
        self.api = self._create_api(api_name, limits, has_domain=domain is not None)
        if limits.web_acl_arn:
            stage = self.api.deployment_stage
            wafv2.CfnWebACLAssociation(self, "Firewall", resource_arn=stage.stage_arn, web_acl_arn=limits.web_acl_arn)
        self._allow_invocations()
        self._tell_functions_the_url(domain)
        self.url = f"https://{domain.name}/" if domain else self.api.url
        self.domain_target = ""
        if domain:
            self._add_domain(domain)

    def _create_api(self, name: str, limits: Limits, *, has_domain: bool) -> apigateway.SpecRestApi:
        return apigateway.SpecRestApi(
            self,
            "Rest",
            rest_api_name=name,
            api_definition=apigateway.ApiDefinition.from_inline(self._definition(gateway_document())),
            endpoint_types=[apigateway.EndpointType.REGIONAL],
            disable_execute_api_endpoint=has_domain,
            # Functions get bodies as clients sent them, and know more encodings than the gateway.
            binary_media_types=["*/*"],
            cloud_watch_role=True,
            deploy_options=apigateway.StageOptions(
                stage_name=STAGE,
                throttling_rate_limit=limits.requests_per_second,
                throttling_burst_limit=limits.requests_burst,
                # This makes each method publish its own metrics, which AWS charges for.
                metrics_enabled=limits.detailed_metrics,
                tracing_enabled=True,
                logging_level=apigateway.MethodLoggingLevel.ERROR,
                access_log_destination=apigateway.LogGroupLogDestination(self.access_log),
                access_log_format=apigateway.AccessLogFormat.custom(json.dumps(ACCESS_LOG)),
                method_options=_method_options(limits),
            ),
        )

    def keep_link_active(self, housekeeping: lambda_.Function) -> None:
        """Call the streaming service weekly, since AWS removes a link that is idle for 60 days."""
        target = targets.LambdaFunction(
            housekeeping,
            event=events.RuleTargetInput.from_object({"ask": f"{self.url}{STREAMS_HEALTH_PATH.lstrip('/')}"}),
        )
        events.Rule(
            self,
            "EveryWeek",
            description="Keeps the link to the streaming service active without streams",
            schedule=events.Schedule.rate(Duration.days(7)),
            targets=[target],
        )

    def _allow_invocations(self) -> None:
        for function in self._functions.values():
            function.add_permission(
                "Api",
                principal=iam.ServicePrincipal("apigateway.amazonaws.com"),
                source_arn=f"arn:{Aws.PARTITION}:execute-api:{Aws.REGION}:{Aws.ACCOUNT_ID}:{self.api.rest_api_id}/*",
            )

    def _tell_functions_the_url(self, domain: Domain | None) -> None:
        """Make the URL of the API a variable of its stage, which the gateway passes on in each event.

        The definition of the API names the functions, so an environment variable of a function cannot name the API.
        """
        host = f"{self.api.rest_api_id}.execute-api.{Aws.REGION}.{Aws.URL_SUFFIX}/{STAGE}"
        stage = self.api.deployment_stage.node.default_child
        assert isinstance(stage, apigateway.CfnStage)
        stage.variables = {URL_VARIABLE: f"https://{domain.name if domain else host}"}

    def _add_domain(self, domain: Domain) -> None:
        """Serve the API at the root of its host name, since clients drop path prefixes."""
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

    # The OpenAPI document with integrations

    def _definition(self, document: Mapping[str, Any]) -> dict[str, Any]:
        backends = find_backends(offers_queries="queries" in self._functions)
        paths = {path: self._path(path, item, backends) for path, item in document["paths"].items()}
        rest = {
            path: {ANY_METHOD: self._operation(path, "any", {}, function)}
            for path, function in FALLBACK_FUNCTIONS.items()
        }
        not_found_operation = {
            "parameters": _parameters(NOT_FOUND_PATH),
            "security": [],
            **self._pages.not_found_operation(),
        }
        rest[NOT_FOUND_PATH] = {ANY_METHOD: not_found_operation}
        rest[STREAMS_HEALTH_PATH] = {
            "get": self._operation(STREAMS_HEALTH_PATH, "get", {}, STREAMS),
            ANY_METHOD: {**not_found_operation, "parameters": []},
        }
        for path, operations in self._console.paths() if self._console else ():
            rest[path] = _public(path, operations)
        return {
            **document,
            "paths": {**paths, **rest},
            "components": {"securitySchemes": {AUTHORIZER_NAME: self._authorizer()}},
            "x-amazon-apigateway-gateway-responses": gateway_responses(),
        }

    def _path(self, path: str, item: Mapping[str, Any], backends: Mapping[str, str]) -> dict[str, Any]:
        if path in PAGES.values():
            return self._page(path, item)
        operations = {
            method: self._operation(path, method, operation, _find_backend(operation["operationId"], backends))
            for method, operation in item.items()
        }
        functions = [backends[each["operationId"]] for each in item.values()]
        rest = next((function for function in functions if function != STREAMS), FALLBACK_FUNCTIONS["/"])
        shared = {"parameters": next(iter(item.values())).get("parameters", [])}
        if "get" in item and backends[item["get"]["operationId"]] == STREAMS:
            # Only the streaming service can answer a HEAD for a stream.
            operations["head"] = self._operation(path, "head", shared, STREAMS)
        return {**operations, ANY_METHOD: self._operation(path, "any", shared, rest)}

    def _page(self, path: str, item: Mapping[str, Any]) -> dict[str, Any]:
        return {
            ANY_METHOD if method == "any" else method: {
                **item.get(method, {}),
                "parameters": [],
                "security": [],
                **operation,
            }
            for method, operation in self._pages.operations(path).items()
        }

    def _operation(self, path: str, method: str, operation: Mapping[str, Any], backend: str) -> dict[str, Any]:
        parameters = operation.get("parameters", _parameters(path))
        integration: Mapping[str, Any]
        responses: Mapping[str, Any] = {"200": {"description": "As the broker answers"}}
        if backend != STREAMS:
            integration = self._proxy(backend)
        elif self._streaming:
            integration = self._stream(self._streaming, path, method, parameters)
        else:
            integration, responses = asleep_integration()
        return {
            **operation,
            "parameters": parameters,
            "responses": responses,
            "security": [] if PUBLIC_PATH_PATTERN.fullmatch(path) else [{AUTHORIZER_NAME: []}],
            "x-amazon-apigateway-integration": integration,
        }

    def _proxy(self, function: str) -> dict[str, Any]:
        return {"type": "aws_proxy", "httpMethod": "POST", "uri": _invocation_uri(self._functions[function])}

    def _stream(
        self, streaming: Streaming, path: str, method: str, parameters: list[Mapping[str, Any]]
    ) -> dict[str, Any]:
        names = [each["name"] for each in parameters]
        return {
            "type": "http_proxy",
            "httpMethod": method.upper(),
            "uri": f"http://{streaming.load_balancer.load_balancer_dns_name}:{LISTENER_PORT}{path}",
            "connectionType": "VPC_LINK",
            "connectionId": streaming.vpc_link.vpc_link_id,
            # AWS's documentation requires a listener here, but its API, examples and constructs take the balancer.
            "integrationTarget": streaming.load_balancer.load_balancer_arn,
            "responseTransferMode": "STREAM",
            "timeoutInMillis": MAX_STREAM_MS,
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
                "authorizerUri": _invocation_uri(self._functions["authorizer"]),
                "authorizerResultTtlInSeconds": self._cache_seconds,
                "identityValidationExpression": BEARER_PATTERN,
            },
        }


def _public(path: str, operations: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        ANY_METHOD if method == "any" else method: {"parameters": _parameters(path), "security": [], **operation}
        for method, operation in operations.items()
    }


def _method_options(limits: Limits) -> Mapping[str, apigateway.MethodDeploymentOptions]:
    """The options of the methods that have their own limits."""
    rates = {f"{path}/GET": limits.public_requests_per_second for path in PUBLIC_PATHS}
    if limits.queries_per_second:
        rates["/queries/POST"] = limits.queries_per_second
    return {
        method: apigateway.MethodDeploymentOptions(
            throttling_rate_limit=rate,
            throttling_burst_limit=2 * rate,
            metrics_enabled=limits.detailed_metrics,
            logging_level=apigateway.MethodLoggingLevel.ERROR,
        )
        for method, rate in rates.items()
    }


def find_backends(*, offers_queries: bool = False) -> Mapping[str, str]:
    """The backend of each operation: a function or the streaming service by their routes, or the gateway itself.

    If no function answers queries, the streaming service says so.
    """
    with closing(open_broker(Settings())) as broker:
        functions = {**NEEDS, **({"queries": QUERIES} if offers_queries else {})}
        areas = {STREAMS: STREAMING_AREAS, **{name: needs.areas for name, needs in functions.items()}}
        routed = {route.operation: name for name, served in areas.items() for route in make_routes(broker, *served)}
    return {**routed, **dict.fromkeys(PAGES, GATEWAY)}


def _find_backend(operation: str, backends: Mapping[str, str]) -> str:
    if operation not in backends:
        raise UnservedOperation(operation)
    return backends[operation]


def _parameters(path: str) -> list[Mapping[str, Any]]:
    names = [part.strip("{}+") for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _invocation_uri(function: lambda_.IFunction) -> str:
    uri: str = Fn.sub(
        "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path/2015-03-31/functions/${Function}/invocations",
        {"Function": function.function_arn},
    )
    return uri


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
