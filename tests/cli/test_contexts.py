"""How the command line chooses a broker and a token."""

import os
import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from nakadi.local import Broker
from nakadi_cli.api import Api, Connection
from nakadi_cli.contexts import connection
from nakadi_cli.failures import BadInput, NotPermitted
from nakadi_client.connections import Api as ClientApi
from nakadi_client.connections import Request
from tests.support.tokens import Issuer

SECRET = "aaa.bbb.ccc"


@pytest.fixture
def contexts_file(tmp_path):
    return tmp_path / "config" / "nakadi.yaml"


def test_the_first_context_becomes_the_current_one(run, broker):
    """The first context that is set becomes the current one."""
    run("contexts", "set", "here", "--url", broker.url, url=None)

    assert run("event-types", "list", "-o", "json", url=None).code == 0
    assert run("contexts", "list", "-o", "json").json == [
        {"name": "here", "url": broker.url, "token": "none", "current": True}
    ]


def test_contexts_are_used_and_deleted_by_name(run, broker):
    """`use` changes the current context, and `delete` removes one."""
    run("contexts", "set", "nowhere", "--url", "http://127.0.0.1:9")
    run("contexts", "set", "here", "--url", broker.url)

    assert run("event-types", "list", url=None).code == 6
    assert run("event-types", "list", "--context", "here", url=None).code == 0
    run("contexts", "use", "here")
    assert run("event-types", "list", url=None).code == 0
    run("contexts", "delete", "here")
    assert [each["name"] for each in run("contexts", "list", "-o", "json").json] == ["nowhere"]
    assert run("contexts", "use", "here").code == 2


def test_options_go_before_the_environment_and_the_environment_before_contexts(run):
    """`--url` and `--context` take precedence over NAKADI_URL, which takes precedence over the current context."""
    run("contexts", "set", "one", "--url", "http://one.example")
    run("contexts", "set", "two", "--url", "http://two.example/base/")
    environ = {**os.environ, "NAKADI_URL": "http://environment.example"}

    assert connection(context=None, url=None).url == "http://one.example"
    assert connection(context=None, url=None, environ=environ).url == "http://environment.example"
    assert connection(context="two", url=None, environ=environ).url == "http://two.example/base"
    assert connection(context=None, url="http://option.example", environ=environ).url == "http://option.example"


def test_a_token_comes_from_a_value_a_file_or_a_command(run, tmp_path):
    """The token of a context is a value, the content of a file, or the output of a command; NAKADI_TOKEN takes
    precedence.
    """
    (tmp_path / "token").write_text("from.a.file\n")
    run("contexts", "set", "value", "--url", "http://a.example", "--token", "-", stdin="a.value\n")
    run("contexts", "set", "file", "--url", "http://a.example", "--token-file", str(tmp_path / "token"))
    run("contexts", "set", "command", "--url", "http://a.example", "--token-command", "echo by.a.command")

    tokens = {name: connection(context=name, url=None).token() for name in ("value", "file", "command")}
    assert tokens == {"value": "a.value", "file": "from.a.file", "command": "by.a.command"}
    assert connection(context="value", url=None, environ={**os.environ, "NAKADI_TOKEN": "mine"}).token() == "mine"


def test_a_token_goes_to_the_url_of_its_context_alone(run, contexts_file):
    """The token of a context is not sent to a URL from an option or from the environment, or to a changed URL."""
    run("contexts", "set", "here", "--url", "http://a.example", "--token", SECRET)

    assert connection(context=None, url="http://b.example").token() is None
    assert connection(context="here", url="http://b.example").token() is None
    environ = {**os.environ, "NAKADI_URL": "http://b.example"}
    assert connection(context=None, url=None, environ=environ).token() is None

    run("contexts", "set", "here", "--url", "http://b.example")
    assert SECRET not in contexts_file.read_text()


def test_tokens_are_never_printed(run, contexts_file):
    """No list, no message and no refusal shows a token, and only its owner can read the file of contexts."""
    said = run("contexts", "set", "here", "--url", "http://127.0.0.1:9", "--token", SECRET)
    answers = [
        said,
        run("contexts", "list", "-o", "yaml"),
        run("event-types", "list", url=None),
        run("contexts", "set", "odd", "--url", "http://127.0.0.1:9", "--token", f"{SECRET}\u00e9{SECRET}"),
        run("event-types", "list", "--context", "odd", url=None),
    ]
    contexts_file.write_text(contexts_file.read_text() + f"\n{SECRET}: [")
    answers.append(run("event-types", "list", url=None))

    assert [each.code for each in answers] == [0, 0, 6, 0, 2, 2]
    assert all(SECRET not in each.out + each.err for each in answers)
    assert stat.S_IMODE(contexts_file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "url", ["", "here", "ftp://a.example", "http://ann:secret@a.example", "http://[", "http://a.example/?a=b"]
)
def test_a_url_that_is_none_is_refused(url):
    """A URL without a scheme or a host, or with a password, is refused."""
    with pytest.raises(BadInput) as refused:
        connection(context=None, url=url or "/", environ={})
    assert "secret" not in refused.value.message


def test_a_failing_command_for_a_token_is_named(run):
    """If the command that should print a token fails, `nakadi` ends with 2, and its message has the command's exit
    code.
    """
    run("contexts", "set", "here", "--url", "http://a.example", "--token-command", "exit 3")

    done = run("event-types", "list", url=None)

    assert done.code == 2
    assert "exit code 3" in done.err


def test_a_broker_that_asks_for_tokens_is_sent_one(run, tmp_path):
    """Without a token, a command ends with exit code 4 and the broker's reason; with a token, it succeeds."""
    issuer = Issuer(tmp_path)
    with Broker(**issuer.settings) as guarded:
        run("contexts", "set", "guarded", "--url", guarded.url)
        without = run("event-types", "list", url=None)
        run("contexts", "set", "guarded", "--token", issuer.token())
        with_it = run("event-types", "list", url=None)

    assert without.code == 4
    assert "401" in without.err
    assert "flow id" in without.err
    assert with_it.code == 0, with_it.err


def test_a_token_that_has_expired_is_asked_for_again(tmp_path):
    """If a token has expired, calls and streams ask the source once for the next token, and use that."""
    issuer = Issuer(tmp_path)
    expired = issuer.token(exp=datetime.now(UTC) - timedelta(hours=1))
    with Broker(**issuer.settings) as guarded:

        def open_api(tokens):
            return closing(Api(Connection(guarded.url, tokens.pop)))

        called = [issuer.token(), expired]
        with open_api(called) as api:
            assert api.get("/subscriptions")["items"] == []
        streamed = [issuer.token(), expired]
        with (
            open_api(streamed) as api,
            closing(ClientApi(api.connection.of_client)) as client,
            client.stream(Request("GET", "/subscriptions")) as answer,
        ):
            assert answer.status_code == 200
        asked = [expired, expired]
        with open_api(asked) as api, pytest.raises(NotPermitted):
            api.get("/subscriptions")
        assert called == streamed == asked == []
