"""The console behind the API: the gateway serves its files from the API definition and from S3.

Synthesis copies the broker's own responses below `/console`. Page and API share one origin, so neither has to allow
cross-origin calls, and public page views occupy no function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from nakadi.http.console import CONSOLE_PREFIX, ConsoleFiles
from nakadi.http.message import Request, Response
from nakadi_cdk.context import BadContext
from nakadi_cdk.pages import (
    METHODS,
    NO_FRAME_HEADERS,
    POLICY_HEADER,
    UNKNOWN_METHOD,
    Operation,
    allow_read,
    mock_operation,
    stored_operation,
)

# A gateway may drop a trailing slash; the page's relative references would then point to the wrong folder.
INDEX = f"{CONSOLE_PREFIX}/index.html"
CONFIG = f"{CONSOLE_PREFIX}/config.json"
NOT_FOUND_PATH = f"{CONSOLE_PREFIX}/{{proxy+}}"

# These headers depend on the build time, so with them every build would cause another deployment.
BUILD_HEADERS = frozenset({"etag", "last-modified"})

# Browsers accept this part of the policy only in a header, and warn about it in a page.
FRAME_ANCESTORS = "; frame-ancestors 'none'"

NOT_BUILT = (
    "console=true needs the built console, which is not in {}: `make console` builds it, "
    "and -c NAKADI_CONSOLE=folder names another place"
)


@dataclass(frozen=True, slots=True)
class ConsoleSource:
    """The folder of the built files, the sign-in options of `NAKADI_CONSOLE_SIGN_IN`, and whether there is a page for
    queries.
    """

    folder: Path
    sign_in: Mapping[str, str]
    has_queries: bool = False


class Console(Construct):
    """The operations below `/console`. Raises `BadContext` if nobody has built the files."""

    def __init__(self, scope: Construct, name: str, *, source: ConsoleSource, path_prefix: str) -> None:
        """`path_prefix` is the prefix of the API's paths, such as `/api`."""
        super().__init__(scope, name)
        if not (source.folder / "index.html").is_file():
            raise BadContext(NOT_BUILT.format(source.folder))
        try:
            self._files = ConsoleFiles(str(source.folder), source.sign_in, has_queries=source.has_queries)
        except ValueError as error:
            raise BadContext(f"NAKADI_CONSOLE_SIGN_IN cannot be used: {error}") from error
        self._folder = source.folder
        self._path_prefix = path_prefix
        self._role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("apigateway.amazonaws.com"))

    def paths(self) -> Iterator[tuple[str, Mapping[str, Operation]]]:
        """Each path with its operations by method; `any` stands for all unsupported methods."""
        yield (
            CONSOLE_PREFIX,
            self._operations(CONSOLE_PREFIX, {method: self._redirect_operation(method) for method in ("get", "head")}),
        )
        yield INDEX, self._operations(INDEX, {method: self._page_operation(method) for method in ("get", "head")})
        yield CONFIG, self._operations(CONFIG, {})
        for file in sorted(self._folder.glob("assets/*")):
            path = f"{CONSOLE_PREFIX}/assets/{file.name}"
            if self._answer(path, "get").status == 200:
                yield path, self._operations(path, self._asset_operations(path, file))
        yield NOT_FOUND_PATH, {"any": _inline_operation(self._answer(f"{CONSOLE_PREFIX}/nothing", "get"))}

    def _operations(self, path: str, special: Mapping[str, Operation]) -> Mapping[str, Operation]:
        return {
            method: special.get(method) or _inline_operation(self._answer(path, method)) for method in (*METHODS, "any")
        }

    def _redirect_operation(self, method: str) -> Operation:
        answer = self._answer(CONSOLE_PREFIX, method)
        return _inline_operation(answer, location=f"{self._path_prefix}{INDEX}")

    def _page_operation(self, method: str) -> Operation:
        answer = self._answer(INDEX, method)
        policy = answer.headers[POLICY_HEADER]
        # The page repeats the policy, since only a template can set a header that contains quotes.
        page_policy = escape(policy.replace(FRAME_ANCESTORS, ""), quote=False)
        meta = f'<meta http-equiv="Content-Security-Policy" content="{page_policy}">'
        page = answer.body.replace(b"<head>", b"<head>" + meta.encode(), 1)
        return _inline_operation(Response(answer.status, answer.headers, page), policy=policy)

    def _asset_operations(self, path: str, file: Path) -> Mapping[str, Operation]:
        asset = s3_assets.Asset(self, file.name, path=str(file))
        allow_read(self._role, asset)
        return {
            method: stored_operation(_drop_build_headers(self._answer(path, method)), asset, method, self._role)
            for method in ("get", "head")
        }

    def _answer(self, path: str, method: str) -> Response:
        name = UNKNOWN_METHOD if method == "any" else method.upper()
        return self._files.answer(Request(method=name, path=path, target=path))


def _inline_operation(answer: Response, *, policy: str = "", **headers: str) -> Operation:
    if set("$#") & set(answer.body.decode()):
        raise BadContext("The console's page and NAKADI_CONSOLE_SIGN_IN cannot have $ or # in them behind a gateway")
    response = _drop_build_headers(answer)
    frame_headers = NO_FRAME_HEADERS if policy else {}
    head = f'#set($context.responseOverride.header.{POLICY_HEADER} = "{policy}")' if policy else ""
    return mock_operation(
        Response(response.status, {**response.headers, **frame_headers, **headers}, response.body), head
    )


def _drop_build_headers(answer: Response) -> Response:
    headers = {name: value for name, value in answer.headers.items() if name not in {*BUILD_HEADERS, POLICY_HEADER}}
    return Response(answer.status, headers, answer.body)
