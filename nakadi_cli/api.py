"""Calls to a broker. A refusal becomes a sentence for the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nakadi_cli.failures import BadInput, Conflict, Failed, NotAnswered, NotFound, NotPermitted, Refused
from nakadi_cli.output import harmless

if TYPE_CHECKING:
    import httpx

# Resetting cursors waits for streams to end, a minute at most; what is behind a gateway answers earlier.
SECONDS = 90.0
# A stream that is silent for so long is gone: its keep-alives come every thirty seconds at the latest.
STREAM_SECONDS = 120.0
_PAGE = 1000


@dataclass(frozen=True)
class Connection:
    """Where a broker is, and how to get a token for it, which is asked for again when it is refused."""

    url: str
    token: Callable[[], str | None]


def path(*segments: str) -> str:
    """Write names into a path, whatever characters they have."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


class Api:
    """A broker's HTTP API. What it refuses is raised as `Failed`, with the Problem's detail and the flow id."""

    def __init__(self, connection: Connection) -> None:
        self.url = connection.url
        self._token = connection.token

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    def get(self, where: str, **parameters: Any) -> Any:
        return _json(self.send("GET", where, params=parameters))

    def post(self, where: str, body: object = None) -> Any:
        return _json(self.send("POST", where, body=body))

    def put(self, where: str, body: object = None) -> Any:
        return _json(self.send("PUT", where, body=body))

    def patch(self, where: str, body: object) -> Any:
        return _json(self.send("PATCH", where, body=body))

    def delete(self, where: str) -> None:
        self.send("DELETE", where)

    def items(self, where: str, **parameters: Any) -> Iterator[Any]:
        """Read a list from page to page."""
        page = self.get(where, limit=_PAGE, **parameters)
        yield from page["items"]
        while following := page.get("_links", {}).get("next"):
            page = self.get(following["href"])
            yield from page["items"]

    def send(
        self,
        method: str,
        where: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request, and return the answer unless it is a refusal."""
        answer = self.try_to_send(method, where, params=params, body=body, content=content, headers=headers)
        if answer.status_code >= 400:
            raise refusal(answer)
        return answer

    def try_to_send(
        self,
        method: str,
        where: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request, and return the answer whatever it is."""
        if body is not None:
            content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        head = {"Content-Type": "application/json"} if content is not None else {}
        head |= headers or {}
        with self._explain_failures():
            answer = self._client.request(
                method, self.url + where, params=params or None, content=content, headers=head
            )
            if answer.status_code == 401 and self._has_another_token():
                answer = self._client.request(
                    method, self.url + where, params=params or None, content=content, headers=head
                )
            return answer

    @contextmanager
    def stream(
        self, where: str, *, params: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """Open a stream of lines."""
        with self._explain_failures(), ExitStack() as opened:

            def opening() -> httpx.Response:
                return opened.enter_context(
                    self._client.stream("GET", self.url + where, params=params, headers=headers, timeout=STREAM_SECONDS)
                )

            answer = opening()
            if answer.status_code == 401 and self._has_another_token():
                answer = opening()
            if answer.status_code >= 400:
                answer.read()
                raise refusal(answer)
            yield answer

    @cached_property
    def _client(self) -> httpx.Client:
        import httpx

        headers = {"User-Agent": "nakadi-cli", "Accept": "application/json, */*;q=0.5"}
        return httpx.Client(headers={**headers, **self._authorization()}, timeout=SECONDS)

    def _authorization(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _has_another_token(self) -> bool:
        """Take another token where there is one: a tail may go on for longer than a token is good for."""
        before = dict(self._client.headers)
        self._client.headers.update(self._authorization())
        return dict(self._client.headers) != before

    @contextmanager
    def _explain_failures(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.TimeoutException as late:
            raise NotAnswered(f"{self.url} did not answer in time.") from late
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as bad:
            raise BadInput(f"{self.url} is not a URL of a broker.") from bad
        except httpx.HTTPError as gone:
            raise NotAnswered(f"{self.url} cannot be reached: {gone}") from gone


def read_lines(answer: httpx.Response) -> Iterator[str]:
    """The lines of a stream as they come, without their ends.

    Only `\\n` ends a line. `iter_lines` of httpx also splits at U+2028, U+2029 and U+0085, which JSON may contain.
    """
    from nakadi_client.lines import LineSplitter

    splitter = LineSplitter()
    for chunk in answer.iter_bytes():
        for line in splitter.feed(chunk):
            yield line.decode()
    if rest := splitter.rest():
        yield rest.decode()


def refusal(answer: httpx.Response) -> Failed:
    """Make a sentence of an answer that is a refusal."""
    status = answer.status_code
    kind = {401: NotPermitted, 403: NotPermitted, 404: NotFound, 409: Conflict}.get(
        status, Refused if status < 500 else NotAnswered
    )
    flow = answer.headers.get("X-Flow-Id")
    sentence = f"{_reason(answer).strip()} ({status}{f', flow id {flow}' if flow else ''})"
    return kind(harmless("; ".join(sentence.split("\n"))))


def _reason(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return answer.text.strip()[:500] or answer.reason_phrase
    violations = [f"{each.get('field')}: {each.get('message')}" for each in problem.get("violations") or ()]
    said = problem.get("detail") or problem.get("message") or problem.get("error_description") or problem.get("title")
    return "; ".join([str(said or answer.reason_phrase), *violations])


def _json(answer: httpx.Response) -> Any:
    if not answer.content:
        return None
    try:
        return answer.json()
    except ValueError as error:
        raise NotAnswered(f"What answered at {answer.url.host} is not a Nakadi broker.") from error
