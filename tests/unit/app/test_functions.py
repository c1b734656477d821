"""The start of a Lambda function."""

from nakadi.app.functions import make_http_function


def test_bodies_that_come_often_are_compiled_while_a_function_starts(monkeypatch):
    """A function that serves commits compiles the schema of their bodies while it starts, so the first commit does not
    wait for the compilation.
    """
    compiled = []
    monkeypatch.setattr("nakadi.openapi.checks.compile_body_schemas", lambda *names: compiled.extend(names))

    make_http_function("subscriptions", "subscriptions")

    assert compiled == ["SubscriptionCursorList"]
