"""Serves the events of a data folder to this process, without a broker that other processes can call.

    with serve_data_folder("data") as connection, HttpSource(connection, print) as source:
        ...

A data file may be open in several processes, so it does not matter whether a broker runs on the folder: this process
opens the same stores, and serves only the operations that read, to whoever has the token of the connection.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from nakadi.app.broker import BrokerServices, open_broker
from nakadi.app.routes import make_routes
from nakadi.app.settings import Settings
from nakadi.engines.sqlite.file import SCHEME, BadDataFile
from nakadi.http.application import Application
from nakadi.http.message import Request
from nakadi.local.serving import ServerThread
from nakadi.model.authorization import UNAUTHENTICATED, Subject
from nakadi.model.event_type import DEFAULT_STORAGE_ID
from nakadi.model.outcomes import BadSetting, NotAuthenticated, Unavailable
from nakadi.ports.event_log import UnknownTopic
from nakadi_client import Connection
from nakadi_sql.errors import BadQuery

DATA_FILE = "nakadi.db"
READ_BY_POST = frozenset({"cursors_lag", "shift_cursors"})


@contextmanager
def serve_data_folder(folder: str) -> Iterator[Connection]:
    """Serve the events in the data folder of a broker on this machine. Raises `BadQuery` if the folder has none.

    Environment variables such as `NAKADI_ARCHIVE` name stores outside the folder, as they do for the broker. A broker
    with its events in Kafka needs `NAKADI_EVENT_LOG`.
    """
    path = Path(folder)
    if not (path / DATA_FILE).is_file() and "NAKADI_REGISTRY" not in os.environ:
        raise BadQuery(f"There is no {DATA_FILE} in {folder}: --data is the data folder of a broker on this machine.")
    token = secrets.token_urlsafe()

    def authenticate(request: Request) -> Subject:
        if not hmac.compare_digest(request.bearer_token or "", token):
            raise NotAuthenticated("Only the query that started this server may use it")
        return UNAUTHENTICATED

    try:
        with closing(open_broker(_settings(path))) as broker:
            _require_log(broker, folder)
            routes = make_routes(broker, "event_types", "cursors", "streams")
            reading = [each for each in routes if each.method == "GET" or each.operation in READ_BY_POST]
            with ServerThread(Application(reading, authenticate), metrics=broker.metrics) as serving:
                yield Connection(serving.url, token=token)
    except (BadDataFile, BadSetting, Unavailable) as error:
        raise BadQuery(str(error)) from error


def tables_in(folder: str) -> str | None:
    """The folder in a data folder in which the jobs put tables; None if there is none yet."""
    tables = Path(folder) / "tables"
    return str(tables) if tables.is_dir() else None


def _require_log(broker: BrokerServices, folder: str) -> None:
    """Raise `BadQuery` if the event types of the folder have their events in another log than the settings name."""
    timelines = (each.timeline for each in broker.event_types.all())
    timeline = next((each for each in timelines if each.storage_id == DEFAULT_STORAGE_ID), None)
    if timeline is None:
        return
    try:
        broker.logs.for_storage(timeline.storage_id).bounds(timeline.topic, [0])
    except UnknownTopic as error:
        raise BadQuery(
            f"The events of {folder} are in another log. If its broker has them in Kafka, set NAKADI_EVENT_LOG as for "
            "the broker."
        ) from error


def _settings(folder: Path) -> Settings:
    """The settings of a process that reads what a broker on this folder has stored, and archives nothing."""
    data_file = f"{SCHEME}{folder / DATA_FILE}"
    chosen = {
        "NAKADI_REGISTRY": data_file,
        "NAKADI_EVENT_LOG": data_file,
        "NAKADI_ARCHIVE": str(folder / "archive"),
        **os.environ,
    }
    return replace(
        Settings.from_env(chosen), auth="off", archiver="function", workers=1, traces="", metrics="", logs=""
    )
