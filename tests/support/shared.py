"""Resources that several logs of a test share."""

from typing import Any, TypeVar

Port = TypeVar("Port")


def keep_open(port: Port) -> Port:
    """A log index or an archive that stays open, though every log closes its parts."""
    anything: Any = port
    anything.close = lambda: None
    return port
