"""How the files of the console are served."""

from __future__ import annotations

import gzip

import httpx
import pytest

from nakadi.local import Broker
from nakadi.model.outcomes import BadSetting
from tests.support.patience import PATIENCE


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    """The address of a broker whose console is a page and a script, and the folder with these files."""
    folder = tmp_path_factory.mktemp("console")
    (folder / "assets").mkdir()
    (folder / "index.html").write_text("<!doctype html>the page")
    (folder / "assets" / "index-1a2b.js").write_text("let many = 0;\n" * 1000)
    (folder / "assets" / "notes.txt").write_text("no file of a console")
    (folder / "secret.js").write_text("outside")
    with Broker(console=str(folder)) as broker, httpx.Client(base_url=broker.url, timeout=PATIENCE) as client:
        yield client


def test_the_page_is_asked_for_each_time_and_loads_only_what_is_ours(console):
    """The page has a strict policy, may not be framed, and is answered with 304 while it has not changed."""
    page = console.get("/console/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    again = console.get("/console/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_an_asset_is_kept_for_ever_and_packed(console):
    """An asset never changes, because its name contains the hash of its content; it is sent compressed."""
    with console.stream("GET", "/console/assets/index-1a2b.js", headers={"accept-encoding": "gzip"}) as asset:
        packed = b"".join(asset.iter_raw())
    assert asset.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in asset.headers["cache-control"]
    assert len(gzip.decompress(packed)) == 14_000
    head = console.head("/console/assets/index-1a2b.js")
    assert (head.headers["content-length"], head.content) == ("14000", b"")


def test_the_address_without_a_slash_leads_to_the_page(console):
    """The address without a slash at its end redirects to the page, which refers to its assets relative to a folder."""
    answer = console.get("/console?theme=dark")
    assert (answer.status_code, answer.headers["location"]) == (308, "console/")


@pytest.mark.parametrize(
    "path",
    [
        "/console/assets/other.js",
        "/console/assets/notes.txt",
        "/console/assets/",
        "/console/assets/..%2fsecret.js",
        "/console/assets/.hidden.js",
        "/console/secret.js",
        "/console/deeper/than/that",
    ],
)
def test_nothing_else_is_served(console, path):
    """Only the page and the assets are served; other files in the folder or near it are not."""
    answer = console.get(path)
    assert answer.status_code == 404
    assert "outside" not in answer.text


@pytest.mark.parametrize("path", [b"/console/assets/../secret.js", b"/console/assets/../../outside.js"])
def test_no_path_leads_out_of_the_assets(console, path):
    """A path with unescaped dots does not lead out of the folder of assets."""
    answer = console.send(console.build_request("GET", "/console/", extensions={"target": path}))
    assert answer.status_code == 404
    assert "outside" not in answer.text


def test_the_console_takes_nothing(console):
    """A request with a body is refused, and other paths go to the API."""
    answer = console.post("/console/", content=b"x" * 100)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert console.get("/consoles").status_code == 404
    assert console.get("/consoles").headers["content-type"] == "application/problem+json"
    assert console.get("/health").text == "OK"


SIGN_IN = {"authorize": "https://id.example.org/authorize", "token": "https://token.example.org/x", "client": "console"}


def test_the_issuer_of_tokens_may_be_called_and_nothing_else():
    """The page learns where to sign in, and its policy lets it request tokens there."""
    with Broker(console_sign_in=tuple(SIGN_IN.items())) as broker:
        answer = httpx.get(f"{broker.url}/console/config.json", timeout=PATIENCE)
    assert answer.json() == {"sign_in": SIGN_IN, "queries": True}
    assert "connect-src 'self' https://token.example.org;" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"client": "console"},
        {**SIGN_IN, "secret": "x"},
        {**SIGN_IN, "token": "https://a; script-src *"},
        {**SIGN_IN, "authorize": "javascript:alert(1)"},
    ],
)
def test_a_sign_in_that_cannot_work_is_refused_at_the_start(wrong):
    """If the settings for signing in cannot work, the broker does not start, and its error message names the
    variable.
    """
    with pytest.raises(BadSetting, match="NAKADI_CONSOLE_SIGN_IN"):
        Broker(console_sign_in=tuple(wrong.items()))


def test_a_broker_without_a_built_console_says_how_to_build_it():
    """The broker works, and its page says in one sentence how to build the console."""
    with Broker() as broker:
        answer = httpx.get(f"{broker.url}/console/", timeout=PATIENCE)
        assert httpx.get(f"{broker.url}/health", timeout=PATIENCE).text == "OK"
    assert answer.status_code == 404
    assert "make console" in answer.text
