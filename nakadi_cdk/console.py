"""The console behind the API: the gateway answers with its files, which are in the API or objects of S3.

They are what the broker itself answers below `/console`, asked while the app is synthesized. Page and API have one
origin, so that neither has to allow calls from elsewhere, and no function is taken from those who have a token.
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
from nakadi_cdk.pages import METHODS, POLICY, UNFRAMED, UNKNOWN_METHOD, Operation, let_read, mock, stored

# A gateway may take a path that ends with a slash for the same as one without it; what the page refers to would then be
# looked for in the wrong folder.
INDEX = f"{CONSOLE_PREFIX}/index.html"
CONFIG = f"{CONSOLE_PREFIX}/config.json"
NOTHING_THERE = f"{CONSOLE_PREFIX}/{{proxy+}}"

# They say when a file was built here, and would make every build another deployment.
OF_A_FILE = frozenset({"etag", "last-modified"})

# Browsers want this part of the policy in a header, and complain of it in a page.
FRAMES = "; frame-ancestors 'none'"

NOT_BUILT = (
    "console=true needs the built console, which is not in {}: `make console` builds it, "
    "and -c NAKADI_CONSOLE=folder names another place"
)


@dataclass(frozen=True, slots=True)
class ConsoleSource:
    """The folder of the built files, and how users get a token, as `NAKADI_CONSOLE_SIGN_IN` says it."""

    folder: Path
    sign_in: Mapping[str, str]


class Console(Construct):
    """What is answered below `/console`. Raises `BadContext` if the files are not built."""

    def __init__(self, scope: Construct, name: str, *, source: ConsoleSource, path_prefix: str) -> None:
        """`path_prefix` is what the paths of the API are below, such as `/api`."""
        super().__init__(scope, name)
        if not (source.folder / "index.html").is_file():
            raise BadContext(NOT_BUILT.format(source.folder))
        try:
            self._files = ConsoleFiles(str(source.folder), source.sign_in)
        except ValueError as error:
            raise BadContext(f"NAKADI_CONSOLE_SIGN_IN cannot be used: {error}") from error
        self._folder = source.folder
        self._path_prefix = path_prefix
        self._role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("apigateway.amazonaws.com"))

    def paths(self) -> Iterator[tuple[str, Mapping[str, Operation]]]:
        """Each path with its operations by their methods; `any` are the methods that it does not have."""
        yield (
            CONSOLE_PREFIX,
            self._operations(CONSOLE_PREFIX, {method: self._redirect(method) for method in ("get", "head")}),
        )
        yield INDEX, self._operations(INDEX, {method: self._page(method) for method in ("get", "head")})
        yield CONFIG, self._operations(CONFIG, {})
        for file in sorted(self._folder.glob("assets/*")):
            path = f"{CONSOLE_PREFIX}/assets/{file.name}"
            if self._answer(path, "get").status == 200:
                yield path, self._operations(path, self._asset(path, file))
        yield NOTHING_THERE, {"any": _in_the_api(self._answer(f"{CONSOLE_PREFIX}/nothing", "get"))}

    def _operations(self, path: str, special: Mapping[str, Operation]) -> Mapping[str, Operation]:
        return {method: special.get(method) or _in_the_api(self._answer(path, method)) for method in (*METHODS, "any")}

    def _redirect(self, method: str) -> Operation:
        answer = self._answer(CONSOLE_PREFIX, method)
        return _in_the_api(answer, location=f"{self._path_prefix}{INDEX}")

    def _page(self, method: str) -> Operation:
        answer = self._answer(INDEX, method)
        policy = answer.headers[POLICY]
        # In the page as well, since a template is the only way to a header with quotes in it.
        meta = (
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy.replace(FRAMES, ""), quote=False)}">'
        )
        page = answer.body.replace(b"<head>", b"<head>" + meta.encode(), 1)
        return _in_the_api(Response(answer.status, answer.headers, page), policy=policy)

    def _asset(self, path: str, file: Path) -> Mapping[str, Operation]:
        asset = s3_assets.Asset(self, file.name, path=str(file))
        let_read(self._role, asset)
        return {
            method: stored(_of_every_build(self._answer(path, method)), asset, method, self._role)
            for method in ("get", "head")
        }

    def _answer(self, path: str, method: str) -> Response:
        name = UNKNOWN_METHOD if method == "any" else method.upper()
        return self._files.answer(Request(method=name, path=path, target=path))


def _in_the_api(answer: Response, *, policy: str = "", **headers: str) -> Operation:
    if set("$#") & set(answer.body.decode()):
        raise BadContext("The console's page and NAKADI_CONSOLE_SIGN_IN cannot have $ or # in them behind a gateway")
    told = _of_every_build(answer)
    framed = UNFRAMED if policy else {}
    head = f'#set($context.responseOverride.header.{POLICY} = "{policy}")' if policy else ""
    return mock(Response(told.status, {**told.headers, **framed, **headers}, told.body), head)


def _of_every_build(answer: Response) -> Response:
    headers = {name: value for name, value in answer.headers.items() if name not in {*OF_A_FILE, POLICY}}
    return Response(answer.status, headers, answer.body)
