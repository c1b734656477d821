import http.server
import threading

import pytest

from nakadi.auth.key_set import KEY_SET_RETRY_INTERVAL_SECONDS, KeySet, make_key_fetcher
from nakadi.model.outcomes import Unavailable
from tests.support.clock import HandMovedClock
from tests.support.patience import PATIENCE
from tests.support.tokens import Issuer


class CountingSource:
    """A key set file that counts how often it is read, and can become unreachable."""

    def __init__(self, path):
        self.reads = 0
        self.reachable = True
        self._path = path

    def __call__(self):
        self.reads += 1
        if not self.reachable:
            raise OSError("out of reach")
        return self._path.read_bytes()


@pytest.fixture
def clock():
    return HandMovedClock()


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path)


@pytest.fixture
def source(issuer):
    return CountingSource(issuer.path)


def test_keys_are_fetched_once_for_many_tokens(source, clock):
    """Known keys are not read again."""
    keys = KeySet(source, clock)

    assert all(keys.find_key("0") is not None for _ in range(10))
    assert source.reads == 1


def test_an_unknown_key_is_fetched_again_after_a_while(source, issuer, clock):
    """A key that was published after the first read is found when a token names it."""
    keys = KeySet(source, clock)
    assert keys.find_key("0") is not None
    issuer.rotate()
    clock.move(KEY_SET_RETRY_INTERVAL_SECONDS)

    assert keys.find_key("1") is not None


def test_unknown_key_ids_do_not_cause_a_fetch_each(source, clock):
    """For any number of unknown key ids, the source is called at most once in ten seconds."""
    keys = KeySet(source, clock)

    assert all(keys.find_key(f"invented-{number}") is None for number in range(100))
    assert source.reads == 1


def test_known_keys_stay_valid_while_their_source_fails(source, clock):
    """While the source is unreachable, the keys that were read before remain valid. (R45)"""
    keys = KeySet(source, clock)
    assert keys.find_key("0") is not None
    source.reachable = False
    clock.move(3600)

    assert keys.find_key("0") is not None


def test_a_source_that_never_answered_is_a_fault(source, clock):
    """Without keys, no token can be checked; that is a fault of the broker, not of the client. (R45)"""
    source.reachable = False

    with pytest.raises(Unavailable):
        KeySet(source, clock).find_key("0")


def test_a_token_without_key_id_is_checked_with_the_only_key(source, clock):
    """If there is only one key, the token needs no key id."""
    assert KeySet(source, clock).find_key(None) is not None


def test_keys_can_be_fetched_from_a_url(issuer, clock):
    """A key set is read from an HTTP server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(issuer.path.read_bytes())

        def log_message(self, *_):
            """Log nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        keys = KeySet(make_key_fetcher(f"http://127.0.0.1:{server.server_port}/jwks.json"), clock)

        assert keys.find_key("0") is not None
        thread.join(PATIENCE)
