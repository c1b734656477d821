"""The console: the files of a web page that calls the API like every other client.

`console/` of the checkout has its sources. The build turns them into a folder of static files, which this module
serves; on AWS, the gateway serves the same files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.utils import formatdate
from pathlib import Path
from stat import S_ISREG

from nakadi.http.application import AdmittedRequest
from nakadi.http.direct import AnsweringApp
from nakadi.http.message import Answer, Request, Response, UnfinishedAnswer
from nakadi.http.router import Lane
from nakadi.model.outcomes import BadSetting, Outcome

CONSOLE_PREFIX = "/console"

BUILT_CONSOLE_FOLDER = Path(__file__).parent / "console_built"
"""The built files in a wheel. In a checkout, this folder does not exist."""

NOT_BUILT_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>Nakadi: the console is not built</title>
<p>The console is not built: run <code>make console</code> in the checkout, which says what is missing if it fails, and
start the broker with <code>make run</code>, or with <code>NAKADI_CONSOLE</code> as the folder of the built files.</p>
<p>The <a href="../docs">reference of the API</a> needs no build.</p>
</html>
"""

# The page loads only its own files and runs nothing inline, and no other page can put the console into a frame. It
# calls no other server except the issuer of tokens.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'{issuer}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SECURITY_HEADERS = {
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

CONTENT_TYPE_BY_SUFFIX = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
SERVED_SUFFIXES = frozenset({".css", ".html", ".js", ".svg"})

# The names of assets contain a hash of their content, so the files never change.
CACHE_FOREVER_HEADERS = {"cache-control": "public, max-age=31536000, immutable"}
REVALIDATE_HEADERS = {"cache-control": "no-cache"}

# The origin of this URL goes into a header, so only characters of URLs are allowed.
SIGN_IN_URL_PATTERN = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/%-]*)?")

ASSET_PATH_PATTERN = re.compile(r"/assets/([A-Za-z0-9_-][A-Za-z0-9._-]*)")


class ApplicationWithConsole:
    """Serves paths below `/console` from a folder, and passes all other requests to the application."""

    def __init__(self, application: AnsweringApp, files: ConsoleFiles) -> None:
        self._application = application
        self._files = files

    def lane_of(self, request: Request) -> Lane:
        # Files are read from disk, so requests for them are answered in threads.
        return Lane.REGISTRY if is_for_console(request) else self._application.lane_of(request)

    def is_quick(self, method: str, target: str) -> bool:
        return self._application.is_quick(method, target)

    def admit_and_begin_answer(self, request: Request) -> Answer | UnfinishedAnswer:
        return (
            self._files.answer(request)
            if is_for_console(request)
            else self._application.admit_and_begin_answer(request)
        )

    def admit(self, request: Request) -> AdmittedRequest | Answer:
        return self._files.answer(request) if is_for_console(request) else self._application.admit(request)

    def begin_answer(self, admitted: AdmittedRequest, body: bytes) -> Answer | UnfinishedAnswer:
        return self._application.begin_answer(admitted, body)

    def refuse(self, request: Request, outcome: Outcome) -> Answer:
        return self._application.refuse(request, outcome)


def with_console(
    application: AnsweringApp, folder: str, sign_in: Mapping[str, str], *, queries: int
) -> ApplicationWithConsole:
    """Put the console in front of an application: from this folder, or the one in the wheel if `folder` is empty. The
    console shows its page for queries if `queries` is not 0. Raises `BadSetting`.
    """
    files = folder or (str(BUILT_CONSOLE_FOLDER) if BUILT_CONSOLE_FOLDER.is_dir() else "")
    try:
        return ApplicationWithConsole(application, ConsoleFiles(files, sign_in, has_queries=queries > 0))
    except ValueError as error:
        raise BadSetting(f"NAKADI_CONSOLE_SIGN_IN cannot be used: {error}") from error


class ConsoleFiles:
    """The files of the console: the page, its assets, and its configuration, which says where users sign in."""

    def __init__(self, folder: str, sign_in: Mapping[str, str] | None = None, *, has_queries: bool = False) -> None:
        """`folder` has the built files; it is empty if there are none. `sign_in` says how users get a token: the URLs
        `authorize` and `token`, the `client`, and a `scope`. Raises `ValueError` if one of these is missing.
        """
        self._folder = Path(folder) if folder else None
        self._sign_in = dict(sign_in or {})
        self._has_queries = has_queries
        issuer = f" {_sign_in_origin(self._sign_in)}" if self._sign_in else ""
        self._headers = {**SECURITY_HEADERS, "content-security-policy": CONTENT_SECURITY_POLICY.format(issuer=issuer)}

    def answer(self, request: Request) -> Response:
        found = self._find_file_response(request)
        if request.method == "HEAD":
            length = {"content-length": str(len(found.body))}
            return Response(found.status, {**found.headers, **length})
        return found

    def _find_file_response(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return self._text_response(405, ".txt", "The console can only be looked at.\n", {"allow": "GET, HEAD"})
        path = request.target.partition("?")[0].removeprefix(CONSOLE_PREFIX)
        if not path:
            # The page refers to its assets by relative paths, so that it works behind any prefix of a proxy, and
            # therefore needs the slash at the end of its own path.
            return Response(308, {**self._headers, **REVALIDATE_HEADERS, "location": "console/"})
        if path in ("/", "/index.html"):
            page = self._file_response("index.html", request, REVALIDATE_HEADERS)
            return page or self._text_response(404, ".html", NOT_BUILT_PAGE)
        if path == "/config.json":
            return self._text_response(200, ".json", json.dumps(self._config()))
        asset = ASSET_PATH_PATTERN.fullmatch(path)
        file = self._file_response(f"assets/{asset[1]}", request, CACHE_FOREVER_HEADERS) if asset else None
        return file or self._text_response(404, ".txt", "There is no such file in the console.\n")

    def _config(self) -> Mapping[str, object]:
        """The facts that the page needs to know about its broker."""
        return {"sign_in": self._sign_in or None, "queries": self._has_queries}

    def _file_response(self, name: str, request: Request, cache_headers: dict[str, str]) -> Response | None:
        """A file of the folder; None if it does not exist, or is of an unknown kind."""
        if self._folder is None or Path(name).suffix not in SERVED_SUFFIXES:
            return None
        path = self._folder / name
        try:
            known = path.stat()
            if not S_ISREG(known.st_mode):
                return None
            content = path.read_bytes()
        except OSError:
            return None
        tag = f'"{known.st_mtime_ns:x}-{known.st_size:x}"'
        modified = {"etag": tag, "last-modified": formatdate(known.st_mtime, usegmt=True)}
        headers = {**self._headers, **cache_headers, **modified, "content-type": CONTENT_TYPE_BY_SUFFIX[path.suffix]}
        if tag in request.headers.get("if-none-match", ""):
            return Response(304, headers)
        return Response(200, headers, content)

    def _text_response(self, status: int, suffix: str, text: str, headers: Mapping[str, str] | None = None) -> Response:
        own = {
            **self._headers,
            **REVALIDATE_HEADERS,
            "content-type": CONTENT_TYPE_BY_SUFFIX[suffix],
            **(headers or {}),
        }
        return Response(status, own, text.encode())


def is_for_console(request: Request) -> bool:
    path = request.target.partition("?")[0]
    return path == CONSOLE_PREFIX or path.startswith(f"{CONSOLE_PREFIX}/")


def _sign_in_origin(sign_in: Mapping[str, str]) -> str:
    """The origin of the issuer of tokens, for the page's policy."""
    wanted = {"authorize", "token", "client"}
    if not wanted <= sign_in.keys() <= wanted | {"scope"}:
        raise ValueError("it has authorize, token and client, and may have scope")
    for name in ("authorize", "token"):
        if not SIGN_IN_URL_PATTERN.fullmatch(sign_in[name]):
            raise ValueError(f"{name} is not a URL")
    return "/".join(sign_in["token"].split("/")[:3])
