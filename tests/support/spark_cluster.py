"""A Spark cluster on this machine: a master, workers, and jobs whose driver and executors are different processes.
Workers have different loopback addresses, because Spark never repeats a slow task on the same host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
from msgspec import Struct

from tests.support.environment import plain_environment
from tests.support.patience import PATIENCE, until
from tests.support.spark import QUICK

SPARK_HOME = Path(pyspark.__file__).parent
SCALA_VERSION = "2.12"
MASTER_URL = re.compile(r"Starting Spark master at (spark://[\d.]+:\d+)")
REGISTERED = "Successfully registered with master"

JAVA_OPTIONS = f"{QUICK['JDK_JAVA_OPTIONS']} -XX:+PerfDisableSharedMem"
SMALL = f"-Xmx96m -XX:MetaspaceSize=64m {JAVA_OPTIONS}"
EXECUTOR_MEMORY = "512m"
"""Spark requires at least 450 MB."""

SETTINGS = {
    "spark.executor.memory": EXECUTOR_MEMORY,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


class JobResult(Struct, frozen=True):
    """The exit code and the report of a job's run, and how many tasks Spark ran for it."""

    code: int
    told: str
    tasks: int


class Cluster(Struct, frozen=True):
    """A master with registered workers. `home` is the folder of the Spark that drivers start."""

    master: str
    folder: Path
    home: Path = SPARK_HOME

    def executors(self) -> Sequence[int]:
        """The ids of the processes of the executors and of their Python, which are found by their working folders."""
        return [int(each.parent.name) for each in Path("/proc").glob("[0-9]*/cwd") if self._is_executor(each)]

    def _is_executor(self, cwd: Path) -> bool:
        try:
            return str(self.folder / "work") in str(cwd.readlink())
        except OSError:
            return False

    @contextmanager
    def driver(self, *arguments: str, variables: Mapping[str, str] | None = None, **settings: str) -> Iterator[Driver]:
        """Start a process that runs jobs on the cluster, with arguments for `spark_driver`, environment variables and
        further settings of Spark.
        """
        options = " ".join(f"--conf {name}={value}" for name, value in {**SETTINGS, **settings}.items())
        environment = plain_environment(
            PYTHONPATH=os.pathsep.join(sys.path),
            PYSPARK_SUBMIT_ARGS=f"{options} pyspark-shell",
            JDK_JAVA_OPTIONS=JAVA_OPTIONS,
            SPARK_HOME=str(self.home),
            SPARK_SCALA_VERSION=SCALA_VERSION,
            SPARK_LOCAL_IP="127.0.0.1",
            **(variables or {}),
        )
        command = [sys.executable, "-m", "tests.support.spark_driver", *arguments]
        pipe = subprocess.PIPE
        with (
            (self.folder / "driver.log").open("a") as log,
            subprocess.Popen(
                command, env=environment, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True
            ) as process,
        ):
            driver = Driver(process, self.master)
            try:
                yield driver
            finally:
                driver.kill()


class Driver(Struct, frozen=True):
    """The process of a driver, which runs one job after the other."""

    process: subprocess.Popen[str]
    master: str

    def run(self, job: str, *arguments: str, fault: str = "", marks: Path | None = None) -> JobResult:
        """Run a job, and wait for its end."""
        self.begin(job, *arguments, fault=fault, marks=marks)
        return self.finish()

    def begin(self, job: str, *arguments: str, fault: str = "", marks: Path | None = None) -> None:
        """Begin a job. `fault` is one of `spark_driver.FAULTS`; when it happens, it leaves a mark in the folder
        `marks`.
        """
        assert self.process.stdin is not None
        asked = {"job": job, "arguments": [*arguments, "--master", self.master], "fault": fault, "marks": str(marks)}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def finish(self) -> JobResult:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return JobResult(**answer)

    def kill(self) -> None:
        """Kill the driver and its Java; the executors end when they notice that the driver has ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


def cluster_in_driver(folder: Path) -> Cluster:
    """A cluster whose master and worker are in the driver, and start with it; the executor is another process.

    The worker writes into Spark's folder, so it gets a folder of its own with links to the parts of Spark.
    """
    home = folder / "spark"
    home.mkdir(parents=True)
    for part in SPARK_HOME.iterdir():
        (home / part.name).symlink_to(part)
    return Cluster(f"local-cluster[1,1,{EXECUTOR_MEMORY.removesuffix('m')}]", folder, home)


@contextmanager
def open_cluster(folder: Path, workers: int = 2, cores: int = 2) -> Iterator[Cluster]:
    """Start a master and workers. They and their executors end with the block."""
    with ExitStack() as stack:
        log = _start_daemon(stack, folder, "master", "master.Master", "127.0.0.1")
        until(lambda: MASTER_URL.search(log.read_text()))
        found = MASTER_URL.search(log.read_text())
        assert found is not None
        size = ("--cores", str(cores), "--memory", "2g", "--work-dir", str(folder / "work"))
        logs = [
            _start_daemon(stack, folder, f"worker-{number}", "worker.Worker", f"127.0.0.{number}", *size, found[1])
            for number in range(1, workers + 1)
        ]
        until(lambda: all(REGISTERED in each.read_text() for each in logs))
        yield Cluster(found[1], folder)


def _start_daemon(stack: ExitStack, folder: Path, name: str, main: str, host: str, *arguments: str) -> Path:
    """Start a master or worker on free ports, and return the path of its log."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ['PATH']}")
    assert java is not None
    command = [java, "-cp", f"{SPARK_HOME}/jars/*", f"org.apache.spark.deploy.{main}"]
    command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
    environment = plain_environment(
        SPARK_HOME=str(SPARK_HOME), SPARK_SCALA_VERSION=SCALA_VERSION, SPARK_LOCAL_IP=host, JDK_JAVA_OPTIONS=SMALL
    )
    with log.open("w") as output:
        process = stack.enter_context(
            subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        )
    stack.callback(_end, process)
    return log


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a master or worker by SIGTERM; a worker then ends its executors, too."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
