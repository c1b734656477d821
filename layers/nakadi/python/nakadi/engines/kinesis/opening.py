"""Opens a Kinesis event log from its URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.config import Config

from nakadi.common.caching import ChangeWatch
from nakadi.common.metrics import Metrics
from nakadi.engines.common.aws_sessions import new_session
from nakadi.engines.kinesis.call_rate import GrowingPauses
from nakadi.engines.kinesis.continuity import ShardTreeCache
from nakadi.engines.kinesis.event_log import DEFAULT_OPTIONS, KinesisLog, KinesisOptions
from nakadi.engines.kinesis.fan_out import FanOut, StreamConsumerApi
from nakadi.engines.kinesis.indexing import Indexer
from nakadi.engines.kinesis.stream import Stream
from nakadi.ports.archive_store import ArchiveStore
from nakadi.ports.clock import Clock
from nakadi.ports.log_index import LogIndex

CONNECT_TIMEOUT_SECONDS = 2
READ_TIMEOUT_SECONDS = 10
STREAM_CHECK_TIMEOUT_SECONDS = 5
"""For how long a check of a stream repeats a call that fails temporarily."""


def open_kinesis_log(
    url: str,
    clock: Clock,
    index: LogIndex,
    archive: ArchiveStore | None,
    watch: ChangeWatch | None = None,
    metrics: Metrics | None = None,
) -> KinesisLog:
    """Open a log at `kinesis://stream?region=…&endpoint=…`. Further parameters of the URL set `KinesisOptions` by
    name.
    """
    name, asked = parse_stream_url(url)
    options = parse_options(name, asked)
    return KinesisLog(
        open_stream(url), index, archive, clock, options, watch, _open_fan_out(name, asked, options), metrics
    )


def _open_fan_out(name: str, url_options: Mapping[str, str], options: KinesisOptions) -> FanOut | None:
    """Open fan-out, if the options name it, with its own client, whose connections may be silent for `push_silence`
    seconds.
    """
    if not options.fan_out:
        return None
    return FanOut(
        StreamConsumerApi(new_kinesis_client(url_options, read_timeout=options.push_silence), name), options.fan_out
    )


def open_indexer(url: str, index: LogIndex, archive: ArchiveStore | None) -> Indexer:
    stream = open_stream(url)
    return Indexer(stream, ShardTreeCache(stream), index, archive)


def open_stream(url: str) -> Stream:
    name, asked = parse_stream_url(url)
    reads = float(asked.get("reads_per_second", 5))
    return Stream(new_kinesis_client(asked), name, reads_per_second=reads)


def check_stream(url: str) -> None:
    stream = open_stream(url)
    try:
        GrowingPauses(STREAM_CHECK_TIMEOUT_SECONDS).retry(stream.check_reachable)
    finally:
        stream.close()


def new_kinesis_client(url_options: Mapping[str, str], read_timeout: float = READ_TIMEOUT_SECONDS) -> Any:
    """A client without retries: the engine knows which calls may be repeated, and for how long."""
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=read_timeout,
        retries={"mode": "standard", "total_max_attempts": 1},
        max_pool_connections=50,
    )
    return new_session().create_client(
        "kinesis", config=config, region_name=url_options.get("region"), endpoint_url=url_options.get("endpoint")
    )


def parse_stream_url(url: str) -> tuple[str, Mapping[str, str]]:
    """The stream's name, and the other parts of the URL."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise ValueError(f"{url!r} names no stream")
    return parts.netloc, {
        name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()
    }


def parse_options(name: str, url_options: Mapping[str, str]) -> KinesisOptions:
    kinds = {each: type(getattr(DEFAULT_OPTIONS, each)) for each in KinesisOptions.__struct_fields__}
    unknown = set(url_options) - set(kinds) - {"region", "endpoint", "reads_per_second"}
    if unknown:
        raise ValueError(f"The URL of stream {name} has unknown parameters: {', '.join(sorted(unknown))}")
    return KinesisOptions(
        **{option: kind(url_options[option]) for option, kind in kinds.items() if option in url_options}
    )
