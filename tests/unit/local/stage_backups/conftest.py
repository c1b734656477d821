"""A stage that is backed up."""

from contextlib import closing
from functools import cached_property

import httpx
import pytest

from nakadi.local.stage_backups.place import open_place
from nakadi.local.stage_backups.restoring import restore_stage
from nakadi.local.stage_backups.taking import take_stage_backup
from nakadi.ports.clock import SystemClock
from tests.support.api import create_event_type
from tests.support.patience import PATIENCE
from tests.support.stages import FIRST, NAME, SECOND, EmulatedStage, a_cloud


class LiveStage:
    """A stage with an event type that has some events, and the destination of its backups."""

    def __init__(self, resources, place, api):
        self.resources = resources
        self.place = place
        self.api = api
        self.left_out = []
        self.name = create_event_type(api)["name"]
        self.publish(3)

    def publish(self, count):
        events = [{"n": n} for n in range(count)]
        self.api.post(f"/event-types/{self.name}/events", json=events).raise_for_status()
        self.resources.index()

    def back_up(self, wait=None, **changed_parts):
        """Take a backup. `wait` is called while the backup waits for the index."""
        with closing(self.resources.open(wait)) as stage:
            for name, change in changed_parts.items():
                setattr(stage, name, change(getattr(stage, name)))
            manifest, self.left_out = take_stage_backup(self.place, stage, SystemClock().now, "1.2.3")
            return manifest

    @cached_property
    def second(self):
        """An empty stage in another region."""
        return EmulatedStage(SECOND)

    def restore(self, manifest, *, accept_loss=False, put=lambda put: put):
        with closing(self.second.open()) as stage:
            stage.put = put(stage.put)
            return restore_stage(self.place, manifest, stage, accept_loss=accept_loss)


@pytest.fixture
def live(tmp_path):
    with a_cloud():
        resources = EmulatedStage(FIRST)
        with (
            open_place(str(tmp_path / "backups"), NAME, creates=True) as place,
            resources.broker() as broker,
            httpx.Client(base_url=broker.url, timeout=PATIENCE) as api,
        ):
            yield LiveStage(resources, place, api)
