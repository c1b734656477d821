"""The whole deployment on one machine, with any number of fronts."""

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
from infra.laptop.cloud import LENIENT, Cloud, DeploymentFailed, Strictness
from infra.laptop.functions import Function, FunctionDefinition, function_definitions
from infra.laptop.gateway import Gateway
from infra.laptop.kinesis_local import free_port
from infra.laptop.mapping import EventSource, make_notifier
from infra.laptop.processes import PACKAGES, end_with_parent, start_python, stop_process
from infra.laptop.schedule import Schedule
from infra.laptop.synthesis import synthesize_cached
from infra.laptop.templates import Deployment
from nakadi.app.settings import Settings
from nakadi.http.hosts import choose_served_hosts
from nakadi.http.server import new_event_loop, open_listening_socket

TIMEOUT_SECONDS = 60.0

# Longer than clients keep an idle connection: a request that meets the end of its connection is lost.
KEEP_ALIVE_SECONDS = 75

# The base environment of a process, by its role.
EnvironmentOfRole = Callable[[str], Mapping[str, str]]


GATEWAY_ADDRESS = "127.0.0.1"


class Laptop:
    """The deployment except for its fronts.

    `settings` are `NAKADI_*` variables that replace variables of the templates.
    """

    def __init__(self, logs: Path, settings: Mapping[str, str] | None = None, strictness: Strictness = LENIENT) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._limits = strictness.limits
        self._settings = settings or {}
        self._closing = ExitStack()
        with ExitStack() as cleanup:
            cleanup.callback(self.close)
            self.deployment = synthesize_cached()
            self.cloud = self._closing.enter_context(Cloud(logs, strictness))
            self.cloud.deploy(self.deployment)
            self._described = self._define_functions(self.deployment)
            self._start_triggers()
            cleanup.pop_all()

    def front(self, *, authorizes: bool, port: int = 0, settings: Mapping[str, str] | None = None) -> Front:
        """Open a front on a local port. `Laptop.close` closes it unless the caller does."""
        function_settings = {**self._settings, **(settings or {}), **({} if authorizes else {"NAKADI_AUTH": "off"})}
        front = Front(
            self.deployment,
            {name: self._function(each, function_settings) for name, each in self._described.items()},
            base_environment=self.cloud.environment,
            settings=function_settings,
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

    def _define_functions(self, deployment: Deployment) -> Mapping[str, FunctionDefinition]:
        """The functions by their ARNs, which this also adds to the templates."""
        found = function_definitions(deployment.serving)
        for name, each in found.items():
            deployment.serving.created_names |= {name: each.name, f"{name}.Arn": each.arn}
        return {each.arn: each for each in found.values()}

    def _function(self, each: FunctionDefinition, settings: Mapping[str, str]) -> Function:
        return Function(
            _apply_settings(each, settings), self.cloud.environment(each.role), self._logs, limits=self._limits
        )

    def _start_triggers(self) -> None:
        """Start the event source mappings and the schedules."""
        serving = self.deployment.serving
        functions = {arn: self._function(each, self._settings) for arn, each in self._described.items()}
        for function in functions.values():
            self._closing.callback(function.close)
        by_name = {each.definition.name: each for each in functions.values()}
        for _, properties in serving.resources("AWS::Lambda::EventSourceMapping"):
            function = by_name[properties["FunctionName"]]
            # A mapping reads streams and reports failures with the permissions of its function.
            role = function.definition.role
            notify = make_notifier(self.cloud.client("sqs", role))
            source = EventSource(properties, self.cloud.client("kinesis", role), function, notify)
            self._closing.enter_context(closing(source))
        for name, rule in serving.resources("AWS::Events::Rule"):
            if "ScheduleExpression" in rule:
                self._closing.enter_context(closing(Schedule(name, rule, functions)))


class Front:
    """A gateway with the functions behind it and a streaming service."""

    def __init__(
        self,
        deployment: Deployment,
        functions: Mapping[str, Function],
        *,
        base_environment: EnvironmentOfRole,
        settings: Mapping[str, str],
        logs: Path,
        authorizes: bool,
        port: int,
        limits: bool,
    ) -> None:
        self._closing = ExitStack()
        with ExitStack() as cleanup:
            cleanup.callback(self.close)
            api = Api(deployment.serving)
            self._functions = {arn: functions[arn] for arn in api.functions(authorizes=authorizes)}
            for function in self._functions.values():
                self._closing.callback(function.close)
            self.streaming = Streaming(deployment, base_environment, settings, logs)
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
            self._serving = GatewayServer(gateway, port)
            self._closing.callback(self._serving.close)
            self.streaming.wait_until_ready()
            cleanup.pop_all()
        self.url = self._serving.url

    def warm_up(self) -> None:
        """Start a process of every function, so the first request does not wait for it."""
        for function in self._functions.values():
            function.warm_up()

    def close(self) -> None:
        self._closing.close()


class Streaming:
    """The streaming service, started as its task definition says."""

    def __init__(
        self, deployment: Deployment, base_environment: EnvironmentOfRole, settings: Mapping[str, str], logs: Path
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
        self._process: subprocess.Popen[bytes] = start_python(
            *("-m", "services.streaming", *container["Command"]),
            # These replace the options of the task definition: of two values, the last one counts.
            *("--host", "127.0.0.1", "--port", str(port)),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": PACKAGES,
                **environment,
                **_known_settings(environment, settings),
                **base_environment(role),
            },
            output=output,
            preexec_fn=end_with_parent,
        )
        self._closing.callback(stop_process, self._process)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise DeploymentFailed(f"The streaming service does not answer: {self.log} tells why")
            time.sleep(0.05)

    def close(self) -> None:
        self._closing.close()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://{self.address}/ready", timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False


class GatewayServer:
    """A thread of this process that serves a gateway."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        listening_socket = open_listening_socket(GATEWAY_ADDRESS, port)
        self.url = f"http://{GATEWAY_ADDRESS}:{listening_socket.getsockname()[1]}"
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
        self._thread = threading.Thread(
            target=self._serve, args=(gateway, listening_socket), name="gateway", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _serve(self, gateway: Gateway, listening_socket: Any) -> None:
        async def serve() -> None:
            await self._server.serve(sockets=[listening_socket])
            await gateway.close()

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())


def _apply_settings(each: FunctionDefinition, settings: Mapping[str, str]) -> FunctionDefinition:
    return replace(each, environment={**each.environment, **_known_settings(each.environment, settings)})


def _known_settings(environment: Mapping[str, str], settings: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in settings.items() if name in environment}
