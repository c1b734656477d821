"""A server on a port, with an echo route, streams, and requests that wait."""

import pytest

from nakadi.http.application import Application
from nakadi.http.message import StreamingResponse
from nakadi.http.router import Route
from nakadi.local.serving import ServerThread
from nakadi.model.authorization import UNAUTHENTICATED
from tests.support.http_server import SlowHandler, StreamHandlers, echo
from tests.support.patience import PATIENCE
from tests.support.wire import Wire


@pytest.fixture
def streams():
    return StreamHandlers()


@pytest.fixture
def slow():
    return SlowHandler()


@pytest.fixture
def serving(streams, slow):
    def stream(name, serve):
        return Route(method="GET", template=f"/{name}", handler=lambda _: StreamingResponse(serve), operation=name)

    echoes = [
        Route(method=method, template="/echo", handler=echo, operation=method, accepts_any_content_type=True)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    ]
    ours = [stream(name, getattr(streams, name)) for name in ("three", "idle", "endless", "until_drained")]
    routes = [*echoes, *ours, Route(method="GET", template="/slow", handler=slow, operation="slow")]
    with ServerThread(Application(routes, lambda _: UNAUTHENTICATED), grace_seconds=PATIENCE) as serving:
        yield serving


@pytest.fixture
def wire(serving):
    with Wire(serving.url) as wire:
        yield wire
