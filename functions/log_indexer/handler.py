"""Counting the events of a shard for everybody, and keeping them in the archive."""

import os
from collections.abc import Mapping
from typing import Any

import nakadi.engines.dynamodb.log_index  # noqa: F401  # loaded while the function starts
from nakadi.app import log_indexer
from nakadi.app.functions import FunctionMetrics, Handle, LambdaFunction
from nakadi.app.settings import Settings


def opened(_counts: FunctionMetrics) -> Handle:
    indexers = log_indexer.Indexers(Settings.from_env(os.environ))

    def index(event: Mapping[str, Any], _context: object) -> Mapping[str, Any]:
        return log_indexer.indexed(indexers.of(event), event)

    return index


handler = LambdaFunction("log_indexer", opened)
