"""Calls to a broker, through the client for Python. A refusal becomes a sentence for the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from nakadi_cli.failures import Conflict, Failed, NotAnswered, NotFound, NotPermitted, Refused
from nakadi_cli.output import harmless

if TYPE_CHECKING:
    import nakadi_client
    from nakadi_client.answers import Answer
    from nakadi_client.connections import Request

_PAGE = 1000


@dataclass(frozen=True)
class Connection:
    """The URL of a broker, and the source of its token, which is read again after a refusal."""

    url: str
    token: Callable[[], str | None]

    @cached_property
    def of_client(self) -> nakadi_client.Connection:
        """The connection in the form that the client needs. Raises `BadInput` if there is no proper token."""
        from nakadi_client import Connection, UntilRefused

        tokens = UntilRefused(self.token)
        tokens.get()
        headers = {"User-Agent": "nakadi-cli", "Accept": "application/json, */*;q=0.5", "Accept-Encoding": "gzip"}
        return Connection(self.url, token=tokens, headers=headers)


def path(*segments: str) -> str:
    """Insert names, which may contain any characters, into a path."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


class Api:
    """A broker's HTTP API. The broker's refusals are raised as `Failed`, with the Problem's detail and the flow id."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.url = connection.url

    def connect(self) -> None:
        """Create the pool of connections now. Otherwise the first request creates it, and takes longer."""
        _ = self._api

    def close(self) -> None:
        if "_api" in self.__dict__:
            self._api.close()

    def get(self, where: str, **parameters: Any) -> Any:
        return self._parse_json(self.send("GET", where, params=parameters))

    def post(self, where: str, body: object = None) -> Any:
        return self._parse_json(self.send("POST", where, body=body))

    def put(self, where: str, body: object = None, **parameters: Any) -> Any:
        return self._parse_json(self.send("PUT", where, params=parameters, body=body))

    def patch(self, where: str, body: object) -> Any:
        return self._parse_json(self.send("PATCH", where, body=body))

    def delete(self, where: str) -> None:
        self.send("DELETE", where)

    def metrics(self) -> str:
        """The broker's metrics, in Prometheus' format."""
        answer = self.send("GET", "/metrics", headers={"Accept": "text/plain;version=0.0.4"})
        return answer.body.decode(errors="replace")

    def items(self, where: str, **parameters: Any) -> Iterator[Any]:
        """Read all pages of a list."""
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
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request, and return the answer unless it is a refusal."""
        from nakadi_client import NoAnswer
        from nakadi_client.connections import Request

        # The body is sent as text instead of `json`, because numbers in a user's file may have any size.
        content = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        typed = {} if content is None else {"Content-Type": "application/json"}
        answer = self._api.send(Request(method, where, content, {**typed, **(headers or {})}, params or {}))
        if isinstance(answer, NoAnswer):
            raise failure_of(answer)
        if answer.status >= 400:
            raise refusal_failure(answer)
        return answer

    def attempt(self, request: Request) -> Answer | nakadi_client.NoAnswer:
        """Send a request once, and return its outcome."""
        return self._api.send(request)

    def _parse_json(self, answer: Answer) -> Any:
        if not answer.body:
            return None
        try:
            return json.loads(answer.body)
        except ValueError as error:
            raise NotAnswered(f"What answered at {self.url} is not a Nakadi broker.") from error

    @cached_property
    def _api(self) -> nakadi_client.connections.Api:
        from nakadi_client.connections import Api

        return Api(self.connection.of_client)


def failure_of(error: nakadi_client.NakadiError) -> Failed:
    """Turn an error of the client into a sentence and an exit code."""
    from nakadi_client import EventsUnreadable, NoAnswer, NotDelivered
    from nakadi_client import Refused as RefusedByBroker

    if isinstance(error, NotDelivered) and error.reason:
        return failure_of(error.reason)
    if isinstance(error, RefusedByBroker):
        return _failure_class(error.status)(harmless(str(error)))
    return (NotAnswered if isinstance(error, NoAnswer | EventsUnreadable) else Refused)(harmless(str(error)))


def refusal_failure(answer: Answer) -> Failed:
    """Turn a refusal into a failure with a sentence for the user."""
    flow = f", flow id {answer.flow_id}" if answer.flow_id else ""
    sentence = f"{_reason_in_answer(answer).strip()} ({answer.status}{flow})"
    return _failure_class(answer.status)(harmless("; ".join(sentence.split("\n"))))


def _failure_class(status: int) -> type[Failed]:
    kinds: Mapping[int, type[Failed]] = {401: NotPermitted, 403: NotPermitted, 404: NotFound, 409: Conflict}
    return kinds.get(status, Refused if status < 500 else NotAnswered)


def _reason_in_answer(answer: Answer) -> str:
    try:
        problem = json.loads(answer.body)
    except ValueError:
        problem = None
    phrase = HTTPStatus(answer.status).phrase if answer.status in set(HTTPStatus) else "refused"
    if not isinstance(problem, dict):
        return answer.body.decode(errors="replace").strip()[:500] or phrase
    violations = [f"{each.get('field')}: {each.get('message')}" for each in problem.get("violations") or ()]
    said = problem.get("detail") or problem.get("message") or problem.get("error_description") or problem.get("title")
    return "; ".join([str(said or phrase), *violations])
