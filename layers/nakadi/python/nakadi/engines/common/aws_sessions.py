"""Makes botocore sessions that share what is slow to create: descriptions of services and endpoints, and botocore's own
handlers.
"""

from __future__ import annotations

import gzip
from contextlib import suppress
from copy import copy
from functools import cache
from typing import Any

import orjson
from botocore.hooks import HierarchicalEmitter
from botocore.loaders import JSONFileLoader, Loader, create_loader
from botocore.session import Session


def new_session() -> Session:
    """Make a session for one client, because creating clients from one session at the same time is not safe."""
    session = Session(event_hooks=copy(_builtin_hooks()), include_builtin_handlers=False)
    session.register_component("data_loader", _botocore_loader(session.get_config_variable("data_path")))
    return session


@cache
def _builtin_hooks() -> HierarchicalEmitter:
    """The hooks that botocore otherwise registers one by one, the same for every session."""
    hooks = HierarchicalEmitter()
    Session(event_hooks=hooks)
    return hooks


@cache
def _botocore_loader(data_path: str | None) -> Loader:
    loader = create_loader(data_path)
    loader.file_loader = _OrjsonLoader()
    return loader


class _OrjsonLoader(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    """Loads descriptions with orjson; botocore builds ordered dictionaries, which takes three times as long."""

    def load_file(self, file_path: str) -> Any:
        for ending, opened in ((".json", open), (".json.gz", gzip.open)):
            with suppress(FileNotFoundError), opened(f"{file_path}{ending}", "rb") as file:
                return orjson.loads(file.read())
        return None
