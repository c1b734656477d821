"""The requests of tests wait as long as a busy machine needs."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

REQUESTS = {"get", "post", "put", "delete", "head", "patch", "options", "request", "stream", "Client", "AsyncClient"}


def impatient_requests(text):
    """The lines that use httpx without a timeout, so that requests give up after five seconds."""
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in REQUESTS:
            # A transport of the test does not wait, and `**options` may contain a timeout.
            has_timeout = {"timeout", "transport", None} & {each.arg for each in call.keywords}
            if ast.unparse(call.func.value) == "httpx" and not has_timeout:
                yield call.lineno


def test_requests_of_tests_say_how_long_they_wait():
    """Every request states a timeout, because an answer takes longer than httpx's five seconds if other processes
    keep every processor busy.
    """
    found = {
        str(path.relative_to(TESTS)): lines
        for path in TESTS.rglob("*.py")
        if "httpx." in (text := path.read_text("utf-8")) and (lines := list(impatient_requests(text)))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("httpx.get(url)", [1]),
        ("httpx.Client(base_url=url)", [1]),
        ("httpx.get(url, timeout=60)", []),
        ("httpx.Client(transport=transport)", []),
        ("httpx.Client(**options)", []),
        ("client.get(url)", []),
    ],
)
def test_impatient_requests_are_found(call, lines):
    """A request needs a timeout, unless it uses a client that has one."""
    assert list(impatient_requests(call)) == lines
