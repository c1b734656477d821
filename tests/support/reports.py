"""What the processes of a run report about their tests.

pytest-xdist sends three reports of each test to the process that counts: its set-up, its call and its end. Nothing
needs a set-up or an end that passed, except for a list of durations. Sending and reading both takes 0.2 ms of the
processor, which is nearly four seconds for all tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def report_less(config: pytest.Config) -> None:
    """Let this process of a run not report successful set-ups and ends, unless somebody wants their durations."""
    if config.option.durations is not None:
        return
    [interactor] = [each for each in config.pluginmanager.get_plugins() if type(each).__name__ == "WorkerInteractor"]
    send = interactor.sendevent

    def send_needed(name: str, **content: Any) -> None:
        if name != "testreport" or is_needed(content["data"]):
            send(name, **content)

    interactor.sendevent = send_needed


def is_needed(report: Mapping[str, Any]) -> bool:
    """Whether the run counts this report of a phase of a test, or shows it."""
    return report["when"] == "call" or report["outcome"] != "passed"
