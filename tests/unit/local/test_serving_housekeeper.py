"""Housekeeping in a thread."""

import threading
from contextlib import closing

from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.settings import Settings
from nakadi.engines.sqlite.file import open_connection
from nakadi.engines.sqlite.wiping import DataFileWiper, request_wipe
from nakadi.local import serving
from nakadi.local.serving import Housekeeper, run_chores
from tests.support.patience import PATIENCE, started_threads, until


def test_chores_are_done_again_and_again_whatever_happens(caplog):
    """A chore that fails is logged and repeated; closing ends the repetition."""
    three_times = threading.Event()
    times = []

    def chores():
        times.append(1)
        if len(times) == 3:
            three_times.set()
        raise RuntimeError("dust")

    housekeeper = Housekeeper(chores, every_seconds=0.001)
    assert three_times.wait(PATIENCE)
    housekeeper.close()
    done = len(times)

    assert "RuntimeError: dust" in caplog.text
    assert len(times) == done


def test_a_housekeeper_may_go_before_the_first_round():
    """A housekeeper can be closed at once, although its first round is an hour away."""
    Housekeeper(lambda: None, every_seconds=3600).close()


def test_a_wipe_is_tried_again_until_no_reader_is_in_the_way(tmp_path, monkeypatch):
    """While a reader needs SQLite's log, a broker tries every few seconds to complete the wipe of its data file.

    The broker does not wait for the next round of its housekeeping.
    """
    path, attempts = tmp_path / "nakadi.db", []
    url = f"sqlite:///{path}"
    wipe = DataFileWiper.run

    def record_attempt(wiper, patience_seconds):
        done = wipe(wiper, patience_seconds)
        # Brokers of other tests in this process look for wipes of their own.
        if wiper._path == path:
            attempts.append(done)
        return done

    monkeypatch.setattr(serving, "WIPE_INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr("nakadi.engines.sqlite.wiping.BROKER_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(DataFileWiper, "run", record_attempt)
    monkeypatch.setattr(BrokerServices, "run_housekeeping", lambda _: None)
    with closing(open_broker(Settings(registry=url, event_log=url))) as broker:
        request_wipe(path)
        with closing(open_connection(path, 1)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM frames").fetchone()
            # SQLite's log now has additions that are newer than the state that the reader uses.
            request_wipe(path)
            with run_chores(broker):
                until(lambda: len(attempts) >= 3)
                assert set(attempts) == {False}
                reader.execute("COMMIT")
                until(lambda: attempts[-1])


def test_a_broker_without_a_data_file_looks_for_no_wipe():
    """A broker in memory looks for no wipe, because it has nothing to wipe."""
    with (
        closing(open_broker(Settings(registry="memory:", event_log="memory:"))) as broker,
        started_threads() as threads,
        run_chores(broker),
    ):
        assert threads() == ["nakadi-housekeeper"]
