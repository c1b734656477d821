"""The tools of each language compile the generated types, and events survive them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from nakadi_cli.generating.declarations import Declarations
from nakadi_cli.generating.examples import make_examples
from nakadi_cli.generating.go import write_go
from nakadi_cli.generating.java import write_java
from nakadi_cli.generating.kotlin import write_kotlin
from nakadi_cli.generating.python import Models, write_python
from nakadi_cli.generating.reading import read_declarations
from nakadi_cli.generating.typescript import write_typescript
from tests.support.pages import ROOT
from tests.support.random_events import RandomSchemas
from tests.support.type_samples import EVENT_TYPES, a_hostile_schema, an_event_type

PROGRAMS = ROOT / "tests/support/types"
KOTLIN = ROOT / ".cache/kotlin"
TSC = ROOT / "console/node_modules/typescript/bin/tsc"
NODE = ROOT / ".cache/console/bin/node"

USUAL = read_declarations(EVENT_TYPES, reserved=["Events"])
STRANGE = read_declarations(
    [
        an_event_type(a_hostile_schema()),
        *(an_event_type(RandomSchemas(Random(seed)).root().schema, f"random.{seed}") for seed in range(100, 130)),
    ],
    reserved=["Events"],
)
EVENTS = make_examples(EVENT_TYPES[0].sample_schema, 20)

# The declarations to compile, and whether dates have native types.
USUAL_TEXT, USUAL_DATES, STRANGE_TEXT = (USUAL, False), (USUAL, True), (STRANGE, False)
with_dates = pytest.mark.parametrize(
    ("given", "has_native_dates"), [USUAL_TEXT, USUAL_DATES, STRANGE_TEXT], ids=["usual", "dates", "strange"]
)
without_dates = pytest.mark.parametrize("given", [USUAL, STRANGE], ids=["usual", "strange"])


def run(command: Sequence[str | Path], folder: Path, stdin: str = "") -> str:
    """Run a tool, and return its output; if it fails, the error shows the output."""
    # Go caches its compiled library below HOME.
    environment = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "LANG": "C.UTF-8", "GOFLAGS": "-mod=mod"}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def round_trip(command: Sequence[str | Path], folder: Path) -> None:
    """Let a program read the events and write them again, and compare its output with the events."""
    lines = "".join(f"{json.dumps(each)}\n" for each in EVENTS)
    written = run(command, folder, stdin=lines)
    assert [json.loads(line) for line in written.splitlines()] == EVENTS


def require_tools(*tools: str | Path) -> None:
    for each in tools:
        if shutil.which(str(each)) is None and not Path(each).exists():
            pytest.skip(f"{Path(each).name} is not on this machine")


@pytest.mark.long("tests/cli/test_types.py::test_events_survive_types_of_python")
def test_types_of_python_are_typed(tmp_path):
    """mypy in strict mode finds no fault in types for Python."""
    for given, has_native_dates in (USUAL_TEXT, USUAL_DATES, STRANGE_TEXT):
        for models in Models:
            if models is not Models.DATACLASS or not has_native_dates:
                text = write_python(given, models, has_native_dates=has_native_dates)
                (tmp_path / f"types_{len(given.sources)}_{models}_{has_native_dates}.py").write_text(text)
    mypy = ROOT / ".venv/bin/mypy"
    # The cache of mypy already contains pydantic and msgspec from `make check`.
    options = ("--strict", "--python-version", "3.11", "--config-file", "", "--cache-dir", ROOT / ".mypy_cache")
    run([mypy, *options, *sorted(tmp_path.glob("*.py"))], tmp_path)


@pytest.mark.long("tests/cli/test_types.py::test_no_name_becomes_code_elsewhere")
@without_dates
def test_types_of_typescript_compile(tmp_path, given):
    """The compiler in strict mode finds no fault, and accepts events as values of their types, to the last member."""
    require_tools(NODE, TSC)
    (tmp_path / "events.ts").write_text(write_typescript(given))
    if given is USUAL:
        values = "".join(f"export const e{at}: OrderPlaced = {json.dumps(each)};\n" for at, each in enumerate(EVENTS))
        (tmp_path / "values.ts").write_text(f'import type {{ OrderPlaced }} from "./events";\n{values}')
    options = ("--strict", "--noEmit", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
    run([NODE, TSC, *options, *sorted(tmp_path.glob("*.ts"))], tmp_path)


def jackson_jars() -> str:
    """The jars of Jackson that Spark includes."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        pytest.skip("Jackson comes with pyspark, which is not installed")
    jars = sorted(Path(spec.origin).parent.glob("jars/jackson-*-2.*.jar"))
    return os.pathsep.join(map(str, jars))


@pytest.mark.long("tests/cli/test_types.py::test_no_name_becomes_code_elsewhere")
@with_dates
def test_types_of_java_compile(tmp_path, given, has_native_dates):
    """javac compiles the types, and Jackson reads events into them and writes the same events."""
    require_tools("javac", "java")
    (tmp_path / "Events.java").write_text(write_java(given, None, "Events", has_native_dates=has_native_dates))
    sources = [tmp_path / "Events.java"]
    is_read = given is USUAL and not has_native_dates
    if is_read:
        sources.append(PROGRAMS / "RoundTrip.java")
    run(["javac", "-encoding", "UTF-8", "-cp", jackson_jars(), "-d", tmp_path, *sources], tmp_path)
    if is_read:
        round_trip(["java", "-cp", f"{tmp_path}{os.pathsep}{jackson_jars()}", "RoundTrip"], tmp_path)


@pytest.mark.long("tests/cli/test_types.py::test_no_name_becomes_code_elsewhere")
@with_dates
def test_types_of_go_compile(tmp_path, given, has_native_dates):
    """The compiler and vet accept the types, gofmt would not change them, and events survive encoding/json."""
    require_tools("go", "gofmt")
    (tmp_path / "go.mod").write_text("module events\n\ngo 1.24\n")
    (tmp_path / "events.go").write_text(write_go(given, "main", has_native_dates=has_native_dates))
    assert run(["gofmt", "-l", "events.go"], tmp_path) == ""
    if given is not USUAL or has_native_dates:
        (tmp_path / "main.go").write_text("package main\n\nfunc main() {}\n")
        run(["go", "vet", "./..."], tmp_path)
        return
    shutil.copy(PROGRAMS / "round_trip.go", tmp_path)
    run(["go", "vet", "./..."], tmp_path)
    round_trip(["go", "run", "."], tmp_path)


@pytest.mark.long("tests/cli/test_types.py::test_no_name_becomes_code_elsewhere")
@without_dates
def test_types_of_kotlin_compile(tmp_path, given: Declarations):
    """The compiler accepts the types, and kotlinx.serialization reads events into them and writes the same events."""
    require_tools("java")
    if not KOTLIN.exists():
        pytest.skip("the compiler of Kotlin is not in .cache/kotlin; `make types` puts it there")
    (tmp_path / "Events.kt").write_text(write_kotlin(given, None))
    is_read = given is USUAL
    sources = [tmp_path / "Events.kt", *([PROGRAMS / "RoundTrip.kt"] if is_read else [])]
    jars = sorted(KOTLIN.glob("*.jar"))
    path = os.pathsep.join(map(str, jars))
    [plugin] = [each for each in jars if "serialization-compiler-plugin" in each.name]
    compiler = ["java", "-cp", path, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-no-stdlib", "-no-reflect"]
    run([*compiler, "-cp", path, f"-Xplugin={plugin}", "-d", tmp_path / "classes", *sources], tmp_path)
    if is_read:
        round_trip(["java", "-cp", f"{tmp_path / 'classes'}{os.pathsep}{path}", "RoundTripKt"], tmp_path)
