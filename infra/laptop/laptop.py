"""The whole deployment on a laptop, and the ways in."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn

from infra.laptop.api import Api
from infra.laptop.cloud import LENIENT, Cloud, NotDeployed, Strictness
from infra.laptop.functions import Described, Function, described
from infra.laptop.gateway import Gateway
from infra.laptop.kinesis_local import free_port
from infra.laptop.mapping import EventSource, sending
from infra.laptop.processes import PACKAGES, end_with_the_starter, ended, python
from infra.laptop.schedule import Schedule
from infra.laptop.synthesis import synthesized
from infra.laptop.templates import Deployment
from nakadi.app.settings import Settings
from nakadi.http.hosts import choose_served_hosts
from nakadi.http.server import new_event_loop, open_listening_socket

PATIENCE = 60.0

# Longer than clients keep an idle connection: a request that meets the end of its connection is lost.
KEEP_ALIVE_SECONDS = 75

# What a process finds around it, by the role that it has.
Surroundings = Callable[[str], Mapping[str, str]]


GATEWAY_ADDRESS = "127.0.0.1"
"""Only this machine can connect."""


class Laptop:
    """Everything but the ways in, until it is closed.

    `settings` are `NAKADI_*` variables that take the place of what the template says, wherever it says something.
    """

    def __init__(self, logs: Path, settings: Mapping[str, str] | None = None, strictness: Strictness = LENIENT) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._limits = strictness.limits
        self._settings = settings or {}
        self._closing = ExitStack()
        with ExitStack() as undoing:
            undoing.callback(self.close)
            self.deployment = synthesized()
            self.cloud = self._closing.enter_context(Cloud(logs, strictness))
            self.cloud.deploy(self.deployment)
            self._described = self._functions_described(self.deployment)
            self._work()
            undoing.pop_all()

    def front(self, *, authorizes: bool, port: int = 0, settings: Mapping[str, str] | None = None) -> Front:
        """A way in on a port of this machine. It is closed with the laptop, or before."""
        chosen = {**self._settings, **(settings or {}), **({} if authorizes else {"NAKADI_AUTH": "off"})}
        front = Front(
            self.deployment,
            {name: self._function(each, chosen) for name, each in self._described.items()},
            surroundings=self.cloud.environment,
            settings=chosen,
            logs=self._logs,
            authorizes=authorizes,
            port=port,
            limits=self._limits,
        )
        self._closing.callback(front.close)
        return front

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _functions_described(self, deployment: Deployment) -> Mapping[str, Described]:
        """By their ARNs, and from now on the templates know these."""
        found = described(deployment.serving)
        for name, each in found.items():
            deployment.serving.made |= {name: each.name, f"{name}.Arn": each.arn}
        return {each.arn: each for each in found.values()}

    def _function(self, each: Described, settings: Mapping[str, str]) -> Function:
        return Function(_with(each, settings), self.cloud.environment(each.role), self._logs, limits=self._limits)

    def _work(self) -> None:
        """What is not asked for by clients: the mapping and the schedule."""
        serving = self.deployment.serving
        functions = {arn: self._function(each, self._settings) for arn, each in self._described.items()}
        for function in functions.values():
            self._closing.callback(function.close)
        by_name = {each.described.name: each for each in functions.values()}
        for _, properties in serving.named("AWS::Lambda::EventSourceMapping"):
            function = by_name[properties["FunctionName"]]
            # A mapping reads the stream, and tells of what it sets aside, with what its function may do.
            role = function.described.role
            tell = sending(self.cloud.client("sqs", role))
            source = EventSource(properties, self.cloud.client("kinesis", role), function, tell)
            self._closing.enter_context(closing(source))
        for name, rule in serving.named("AWS::Events::Rule"):
            if "ScheduleExpression" in rule:
                self._closing.enter_context(closing(Schedule(name, rule, functions)))


class Front:
    """The gateway, the functions behind it, and the streaming service."""

    def __init__(
        self,
        deployment: Deployment,
        functions: Mapping[str, Function],
        *,
        surroundings: Surroundings,
        settings: Mapping[str, str],
        logs: Path,
        authorizes: bool,
        port: int,
        limits: bool,
    ) -> None:
        self._closing = ExitStack()
        with ExitStack() as undoing:
            undoing.callback(self.close)
            api = Api(deployment.serving)
            self._functions = {arn: functions[arn] for arn in api.functions(authorizes=authorizes)}
            for function in self._functions.values():
                self._closing.callback(function.close)
            self.streaming = Streaming(deployment, surroundings, settings, logs)
            self._closing.callback(self.streaming.close)
            streams = f"http://{self.streaming.address}"
            names = Settings.from_env({name: settings[name] for name in ("NAKADI_HOSTS",) if name in settings}).hosts
            gateway = Gateway(
                api,
                self._functions,
                streams,
                authorizes=authorizes,
                throttles=limits,
                served_hosts=choose_served_hosts(GATEWAY_ADDRESS, is_authenticated=authorizes, names=names),
            )
            self._serving = Serving(gateway, port)
            self._closing.callback(self._serving.close)
            self.streaming.wait_until_it_answers()
            undoing.pop_all()
        self.url = self._serving.url

    def warm_up(self) -> None:
        """Start a process of every function, so that no first request waits for it."""
        for function in self._functions.values():
            function.warm_up()

    def close(self) -> None:
        self._closing.close()


class Streaming:
    """The streaming service, as its task describes it."""

    def __init__(
        self, deployment: Deployment, surroundings: Surroundings, settings: Mapping[str, str], logs: Path
    ) -> None:
        task = deployment.serving.one("AWS::ECS::TaskDefinition")
        role = task["TaskRoleArn"].rpartition("/")[2]
        [container] = task["ContainerDefinitions"]
        environment = {each["Name"]: each["Value"] for each in container["Environment"]}
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._closing = ExitStack()
        self.log = logs / f"streaming-{port}.log"
        output = self._closing.enter_context(self.log.open("wb"))
        self._process: subprocess.Popen[bytes] = python(
            *("-m", "services.streaming", *container["Command"]),
            # Of two that are given, the last one counts.
            *("--host", "127.0.0.1", "--port", str(port)),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": PACKAGES,
                **environment,
                **_known(environment, settings),
                **surroundings(role),
            },
            output=output,
            preexec_fn=end_with_the_starter,
        )
        self._closing.callback(ended, self._process)

    def wait_until_it_answers(self) -> None:
        end = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise NotDeployed(f"The streaming service does not answer: {self.log} tells why")
            time.sleep(0.05)

    def close(self) -> None:
        self._closing.close()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://{self.address}/ready", timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False


class Serving:
    """The gateway, served by a thread of this process."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        listening = open_listening_socket(GATEWAY_ADDRESS, port)
        self.url = f"http://{GATEWAY_ADDRESS}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            gateway,
            lifespan="off",
            ws="none",
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=10,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(gateway, listening), name="gateway", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _serve(self, gateway: Gateway, listening: Any) -> None:
        async def serve() -> None:
            await self._server.serve(sockets=[listening])
            await gateway.close()

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())


def _with(each: Described, settings: Mapping[str, str]) -> Described:
    return replace(each, environment={**each.environment, **_known(each.environment, settings)})


def _known(environment: Mapping[str, str], settings: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in settings.items() if name in environment}
