"""The console behind the API, as the gateway reads it from the template."""

import json

import pytest

from infra.laptop.api import ANY, INTEGRATION, Api, GatewayRequest
from infra.laptop.templates import Template
from nakadi_cdk.context import BadContext
from tests.infra.conftest import CONSOLE_PAGE, CONSOLE_SCRIPT
from tests.support.lazy_modules import LazyModule

cdk = LazyModule("aws_cdk")
console = LazyModule("nakadi_cdk.console")

ADDRESS = "https://id.example"


@pytest.fixture(scope="session")
def paths(large_deployment):
    return large_deployment.serving.one("AWS::ApiGateway::RestApi")["Body"]["paths"]


@pytest.fixture(scope="session")
def fetch(large_deployment):
    """A function that returns the response that a browser gets for a method and a path."""
    api = Api(Template(large_deployment.serving.path))

    def answer(method, path):
        request = GatewayRequest(method=method, raw_path=path, query="", headers=[], body=b"")
        found = api.find_operation(method, path)
        assert found.operation.authorizer is None
        return api.fixed(found.operation.fixed, request)

    return answer


def test_the_address_leads_to_the_page(fetch):
    """The address of the console works with or without a trailing slash."""
    for path in ("/console", "/console/"):
        answer = fetch("GET", path)
        assert (answer.status, answer.headers["location"]) == (308, "/console/index.html")


def test_the_page_has_its_strict_policy_in_a_header(fetch):
    """No content of another origin is loaded, no inline script runs, and the page sends requests only to its own origin
    and to the issuer of tokens.
    """
    page = fetch("GET", "/console/index.html")
    policy = dict(each.strip().partition(" ")[::2] for each in page.headers["content-security-policy"].split(";"))

    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert {name: policy[name] for name in ("default-src", "script-src", "frame-ancestors")} == {
        "default-src": "'none'",
        "script-src": "'self'",
        "frame-ancestors": "'none'",
    }
    assert policy["connect-src"] == f"'self' {ADDRESS}"
    assert (page.headers["x-frame-options"], page.headers["cache-control"]) == ("DENY", "no-cache")
    # The page itself also has the policy, without the directive that browsers ignore in pages.
    before, _, after = page.body.decode().partition("<head>")
    assert after.startswith("""<meta http-equiv="Content-Security-Policy" content="default-src 'none'; """)
    assert "frame-ancestors" not in page.body.decode()
    assert before + "<head>" + after.partition(">")[2] == CONSOLE_PAGE


def test_a_template_reads_nothing_in_what_it_shows(paths):
    """Only the header in front of the page uses the template; nothing in the page itself is replaced."""
    for path, item in paths.items():
        for operation in item.values() if path.startswith("/console") else ():
            for answer in operation[INTEGRATION]["responses"].values():
                for text in answer.get("responseTemplates", {}).values():
                    assert set("$#").isdisjoint(text.rpartition('")')[2])


def test_its_users_sign_in_where_the_operator_says(fetch):
    """The file that the page requests has the address of the issuer, the client and the scope, and says that there is
    a page for queries. (Q16)
    """
    config = fetch("GET", "/console/config.json")

    assert config.headers["content-type"] == "application/json"
    assert json.loads(config.body)["sign_in"] == {
        "authorize": f"{ADDRESS}/oauth2/authorize",
        "token": f"{ADDRESS}/oauth2/token",
        "client": "console",
        "scope": "openid nakadi/use",
    }
    assert json.loads(config.body)["queries"] is True


def test_its_files_are_objects_that_the_gateway_may_read(large_deployment, fetch, paths):
    """Browsers may cache the files forever, because their names depend on their content; nothing else in the folder is
    served.
    """
    script = fetch("GET", "/console/assets/index-1a2b.js")
    integration = paths["/console/assets/index-1a2b.js"]["get"][INTEGRATION]
    bucket, key = (integration["uri"]["Fn::Sub"][1][name] for name in ("Bucket", "Key"))
    role = integration["credentials"]["Fn::GetAtt"][0]
    read = {
        json.dumps(statement["Resource"])
        for statement in large_deployment.serving.statements({"Ref": role})
        if statement["Action"] == "s3:GetObject"
    }

    assert script.body.decode() == CONSOLE_SCRIPT
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert len(read) == 1
    assert key in read.pop()
    assert bucket
    assert fetch("GET", "/console/assets/notes.txt").status == 404


def test_nothing_of_it_takes_a_function_or_wants_a_token(paths):
    """For any method and path of the console, the gateway itself answers, without a token; no answer depends on the day
    of the build.
    """
    found = {path: item for path, item in paths.items() if path.startswith("/console")}

    assert set(found) == {
        "/console",
        "/console/index.html",
        "/console/config.json",
        "/console/assets/index-1a2b.js",
        "/console/{proxy+}",
    }
    for item in found.values():
        assert ANY in item
        for operation in item.values():
            assert operation["security"] == []
            assert operation[INTEGRATION]["type"] in {"aws", "mock"}
            for answer in operation[INTEGRATION]["responses"].values():
                headers = {name.rpartition(".")[2] for name in answer["responseParameters"]}
                assert headers.isdisjoint({"etag", "last-modified", "content-security-policy"})


def test_other_methods_are_refused_as_the_broker_refuses_them(fetch):
    """For the console, HEAD gets no body, and methods that would change something are refused."""
    assert (fetch("HEAD", "/console/index.html").status, fetch("HEAD", "/console/index.html").body) == (200, b"")
    assert [fetch(method, "/console").status for method in ("POST", "OPTIONS")] == [405, 405]


def test_a_deployment_without_it_has_none_of_its_paths(serving):
    """Only deployments that request the console have its paths."""
    assert not [path for path in serving.one("AWS::ApiGateway::RestApi")["Body"]["paths"] if "console" in path]


def test_the_output_leads_to_the_page(large_deployment):
    """The outputs of a deployment include the address of the console."""
    assert (
        large_deployment.serving.content["Outputs"]["ConsoleUrl"]["Value"]
        == "https://events.example.org/console/index.html"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda folder: console.ConsoleSource(folder / "none", {}), "`make console` builds it"),
        (lambda folder: console.ConsoleSource(folder, {"client": "me"}), "NAKADI_CONSOLE_SIGN_IN cannot be used"),
    ],
)
def test_what_is_missing_stops_the_deployment(tmp_path, source, message):
    """If a part of the console is missing, a sentence names it before anything is created."""
    (tmp_path / "index.html").write_text(CONSOLE_PAGE)
    stack = cdk.Stack(cdk.App(analytics_reporting=False), "serving")
    with pytest.raises(BadContext, match=message):
        console.Console(stack, "Console", source=source(tmp_path), path_prefix="")
