"""Functions in separate processes."""

import json
import textwrap
from contextlib import closing, contextmanager

import pytest

from infra.laptop.functions import (
    Function,
    FunctionDefinition,
    InvocationFailed,
    TimedOut,
    TooLarge,
    function_definitions,
)
from infra.laptop.templates import Template
from tests.support.patience import PATIENCE

FUNCTION = "AWS::Lambda::Function"

HANDLER = """
    import os, sys, time

    calls = []

    def handler(event, context):
        calls.append(event)
        match event:
            case "raise":
                raise ValueError("not so")
            case "exit":
                os._exit(3)
            case "sleep":
                time.sleep(600)
            case "large":
                return "x" * 6 * 1024 * 1024
            case "memory":
                return len(b"x" * 256 * 1024 * 1024)
            case "path":
                return sys.path
            case "environment":
                return dict(os.environ)
            case "context":
                return [context.function_name, context.memory_limit_in_mb, context.get_remaining_time_in_millis()]
        return len(calls)
"""


@contextmanager
def a_function(tmp_path, *, timeout=PATIENCE, memory=512, limits=False):
    (tmp_path / "handler.py").write_text(textwrap.dedent(HANDLER))
    definition = FunctionDefinition(
        name="laptop-one",
        folder=tmp_path,
        handler="handler.handler",
        timeout=timeout,
        memory=memory,
        environment={"NAKADI_AUTH": "gateway"},
    )
    with closing(Function(definition, {"AWS_REGION": "eu-central-1"}, tmp_path, limits=limits)) as function:
        yield function


@pytest.fixture
def function(tmp_path):
    with a_function(tmp_path) as function:
        yield function


def test_a_process_is_kept_for_the_next_invocation(function):
    """The next invocation gets the same process, as in Lambda, even if the last invocation raised an error."""
    assert function.invoke("a") == 1
    with pytest.raises(InvocationFailed, match="ValueError: not so"):
        function.invoke("raise")
    assert function.invoke("b") == 3


def test_a_function_has_only_its_own_environment(function, monkeypatch):
    """A function gets the template's variables, those that Lambda adds, and the addresses of the services."""
    monkeypatch.setenv("NAKADI_REGISTRY", "memory:")
    environment = function.invoke("environment")
    assert environment["NAKADI_AUTH"] == "gateway"
    assert environment["AWS_REGION"] == "eu-central-1"
    assert environment["AWS_LAMBDA_FUNCTION_NAME"] == "laptop-one"
    assert "NAKADI_REGISTRY" not in environment


def test_a_function_sees_only_its_folder_and_its_layers(function, tmp_path):
    """A function sees its folder and its layers, and nothing else of this project."""
    ours = [each for each in function.invoke("path") if "python3" not in each]
    assert ours[0] == str(tmp_path)
    assert [each.rpartition("/layers/")[2] for each in ours[1:]] == ["nakadi/python"]


def test_a_function_can_read_its_context(function):
    """A handler can read its name and its remaining time."""
    name, memory, remaining = function.invoke("context")
    assert (name, memory) == ("laptop-one", 512)
    assert 0 < remaining <= 1000 * PATIENCE


def test_a_process_that_ends_is_replaced(function):
    """If a process ends, its invocation fails, and the next one gets a new process."""
    with pytest.raises(InvocationFailed, match="ended"):
        function.invoke("exit")
    assert function.invoke("a") == 1


def test_an_invocation_may_not_take_for_ever(tmp_path):
    """An invocation ends at its timeout, together with its process."""
    with a_function(tmp_path, timeout=2) as function:
        assert function.invoke("a") == 1
        with pytest.raises(TimedOut, match="after 2 seconds"):
            function.invoke("sleep")
        assert function.invoke("a") == 1


def test_a_process_that_takes_too_much_memory_is_ended(tmp_path):
    """With limits, a process that took too much memory ends after the invocation, and the next invocation gets a new
    process.
    """
    with a_function(tmp_path, memory=128, limits=True) as function:
        assert function.invoke("a") == 1
        with pytest.raises(InvocationFailed, match=r"signal: killed.* of 128 MB"):
            function.invoke("memory")
        assert function.invoke("a") == 1


def test_an_event_has_a_largest_size(function):
    """An event has at most 6 MB, as in Lambda."""
    with pytest.raises(TooLarge):
        function.invoke("x" * 6 * 1024 * 1024)


def test_an_answer_has_a_largest_size(function):
    """An answer has at most 6 MB; after a larger one, the next invocation finds the function unchanged."""
    with pytest.raises(InvocationFailed, match="ResponseSizeTooLarge"):
        function.invoke("large")
    assert isinstance(function.invoke("a"), int)


def test_a_function_in_an_image_sees_its_packages(tmp_path):
    """The command of an image names the handler. Such a function also sees the packages that its image contains."""
    properties = {
        "FunctionName": "laptop-queries",
        "PackageType": "Image",
        "ImageConfig": {"Command": ["handler.handler"]},
        "Timeout": 29,
        "MemorySize": 2048,
        "Environment": {"Variables": {"NAKADI_AUTH": "gateway"}},
        "Role": "arn:aws:iam::123456789012:role/Queries",
        "Tags": [{"Key": "function", "Value": "queries"}],
    }
    path = tmp_path / "stack.template.json"
    path.write_text(json.dumps({"Resources": {"Queries": {"Type": FUNCTION, "Properties": properties}}}))
    definition = function_definitions(Template(path))["Queries"]
    assert (definition.handler, definition.folder.name) == ("handler.handler", "queries")
    assert {"nakadi", "nakadi_jobs", "nakadi_client", "nakadi_sql"} <= {
        each.name for folder in definition.packages for each in folder.iterdir()
    }
