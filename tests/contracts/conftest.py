"""Fixtures of the contract suites: every engine of each port."""

import pytest

from tests.support.engines import COORDINATIONS, EVENT_LOGS, a_coordination, a_log, event_log_params


@pytest.fixture(params=event_log_params())
def log(request, tmp_path):
    with a_log(EVENT_LOGS[request.param], tmp_path) as opened:
        yield opened


@pytest.fixture(params=COORDINATIONS)
def coordination(request, tmp_path):
    with a_coordination(COORDINATIONS[request.param], tmp_path) as opened:
        yield opened
