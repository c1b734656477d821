"""Sessions of botocore that share what is long to read: its descriptions of services and endpoints."""

from __future__ import annotations

from functools import cache

from botocore.loaders import Loader, create_loader
from botocore.session import Session


def new_session() -> Session:
    """One for each client: making clients of one session at the same time is not safe."""
    session = Session()
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)
