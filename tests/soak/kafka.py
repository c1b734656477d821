"""The system of a soak test whose events are in Kafka: the test also stops and restarts the Kafka server."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.soak.soak import Server
from tests.support.kafka import OwnServer


class KafkaGround(Server):
    def __init__(self, folder: Path, workers: int = 1) -> None:
        self._kafka = OwnServer(folder)
        self._kafka.wait()
        super().__init__(folder, workers)

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "NAKADI_EVENT_LOG": f"kafka://{self._kafka.address}"}

    def end_a_part(self, how: signal.Signals, chance: random.Random) -> bool:
        """Restart Kafka, or end a worker, which the supervisor restarts."""
        if chance.random() < 0.5 and super().end_a_part(how, chance):  # if there are workers, both are equally likely
            return True
        if how is signal.SIGKILL:
            self._kafka.kill()
        else:
            self._kafka.end()
        self._kafka.start()
        return True

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._kafka.end()
