"""Resources that several logs of a test share."""

from typing import Any, TypeVar

Port = TypeVar("Port")


def keep_open(port: Port) -> Port:
    """Let a log index or an archive stay open when logs close their parts."""
    anything: Any = port
    anything.close = lambda: None
    return port
