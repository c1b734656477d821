"""SQS queues, SNS topics, event buses and Lambda functions for tests, over HTTP: moto in this process, on a port of
this machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

import uvicorn
from botocore.session import Session

from infra.laptop.kinesis_local import free_port
from infra.laptop.moto_service import Services
from tests.support.aws import REGION, aws
from tests.support.patience import until
from tests.support.processes import is_listening

ACCOUNT = "123456789012"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_EC2_METADATA_DISABLED": "true"}

Handler = Callable[[Any, Any], Any]


@contextmanager
def aws_over_http() -> Iterator[str]:
    """Yield the endpoint of an emulated AWS, to which the environment also points."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(Services(None), port=port, lifespan="off", log_config=None))
    with aws():
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
        thread.start()
        try:
            until(lambda: is_listening(port))
            endpoint = f"http://127.0.0.1:{port}"
            with patch.dict(os.environ, {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}):
                yield endpoint
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def a_client(service: str, endpoint: str) -> Iterator[Any]:
    with closing(Session().create_client(service, REGION, endpoint_url=endpoint)) as client:
        yield client


def receive_all(sqs: Any, url: str) -> list[dict[str, Any]]:
    """Take all messages out of a queue, and return them in order."""
    found: list[dict[str, Any]] = []
    while messages := sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    ).get("Messages"):
        found += messages
        for each in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
    return found


@contextmanager
def a_function(handler: Handler) -> Iterator[str]:
    """Yield the ARN of a function whose invocations `handler` answers in this process. The environment points to its
    endpoint.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _invocations_of(handler))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        with patch.dict(os.environ, {**CREDENTIALS, "AWS_ENDPOINT_URL_LAMBDA": endpoint}):
            yield f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:ship"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _invocations_of(handler: Handler) -> type[BaseHTTPRequestHandler]:
    class Invocations(BaseHTTPRequestHandler):
        """Answers synchronous invocations as Lambda does. If the handler raises a `LambdaError`, that is the service's
        own answer.
        """

        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, result = 200, {}, b""
            try:
                result = json.dumps(handler(event, None)).encode()
            except LambdaError as error:
                status, headers = error.status, {"x-amzn-ErrorType": error.code}
                result = json.dumps({"message": "from the service"}).encode()
            except Exception as error:  # noqa: BLE001  # Lambda reports any error
                headers = {"X-Amz-Function-Error": "Unhandled"}
                result = json.dumps({"errorMessage": str(error), "errorType": type(error).__name__}).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(result))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client has closed the connection
                self.wfile.write(result)

        def log_message(self, *_: Any) -> None:
            pass

    return Invocations


class LambdaError(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
