"""The deployment on this machine, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from infra.laptop.synthesis import STAGE
from infra.laptop.templates import REGION

HURRIED: Mapping[str, str] = {
    # What one function was told, the next one knows at once, as in a broker of one process.
    "NAKADI_CACHE_SECONDS": "0",
    # The local Kinesis limits no reads, and no test waits for what readers share.
    "NAKADI_EVENT_LOG": (
        f"kinesis://nakadi-{STAGE}?region={REGION}&lease=0.05&shared_for=0&poll=0.02&reads_per_second=10000"
    ),
}


def variables(settings: Mapping[str, object]) -> Mapping[str, str]:
    """Settings as variables; how a process is asked is the deployment's."""
    return {f"NAKADI_{name.upper()}": _text(value) for name, value in settings.items() if name != "auth"}


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join("=".join(each) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)
