"""Clients of a broker without a socket, with the same interface as those with one."""

from __future__ import annotations

from functools import partial
from urllib.parse import parse_qs, unquote

import httpx

from nakadi.http.application import Application
from nakadi.http.message import Request, Response
from tests.support.openapi import AVRO, CLOUD_EVENTS, EVENT_STREAM, STREAM, assert_answer_matches, operation_at
from tests.support.patience import PATIENCE

get = partial(httpx.get, timeout=PATIENCE)
post = partial(httpx.post, timeout=PATIENCE)


class ApplicationTransport(httpx.BaseTransport):
    """Passes requests to an application in this process. It buffers answers, so streams need a socket."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        target = request.url.raw_path.decode()
        path, _, query = target.partition("?")
        answer = self._application.answer(
            Request(
                method=request.method,
                path=unquote(path),
                target=target,
                query={name: tuple(values) for name, values in parse_qs(query, keep_blank_values=True).items()},
                headers={name.lower(): value for name, value in request.headers.items()},
                body=request.read(),
            )
        )
        assert isinstance(answer, Response), "a stream needs a socket"
        return httpx.Response(answer.status, headers=dict(answer.headers), content=answer.body)


def make_client(application: Application, **headers: str) -> httpx.Client:
    """A client of an application in this process, without a socket."""
    return check_against_description(
        httpx.Client(transport=ApplicationTransport(application), base_url="http://broker", headers=headers)
    )


def check_against_description(client: httpx.Client) -> httpx.Client:
    """Let the client fail whenever an answer does not match the description of the API."""
    client.event_hooks = {"response": [_hold_against_the_description]}
    return client


def _hold_against_the_description(answer: httpx.Response) -> None:
    request, headers = answer.request, {name.lower(): value for name, value in answer.headers.items()}
    streamed = headers.get("content-type", "").startswith((STREAM, EVENT_STREAM, CLOUD_EVENTS, AVRO))
    operation = operation_at(request.method, request.url.raw_path.decode())
    body = None if streamed else answer.read()
    assert_answer_matches(operation, answer.status_code, headers, body, method=request.method)
