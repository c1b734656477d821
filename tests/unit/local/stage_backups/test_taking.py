"""The contents of a stage's backup, which have to be consistent."""

from contextlib import closing

import pytest
from msgspec.structs import replace

from nakadi.engines.dynamodb.tables import DOCUMENTS_TABLE, LOG_INDEX_TABLE
from nakadi.local.backups.store import BackupFailed
from nakadi.local.stage_backups import stage as stage_module
from nakadi.local.stage_backups.place import FORMAT
from nakadi.local.stage_backups.restoring import MARK_KIND
from nakadi.local.stage_backups.taking import MAX_COPIES, find_damage
from tests.support.stages import NAME


def test_later_backups_store_only_new_objects(live):
    """An archive object that is already in the destination is not read again; all others are stored. (B17)"""
    live.back_up()
    before = live.place.archive.sizes()
    live.publish(2)
    read = []

    manifest = live.back_up(archive=lambda store: ReadNotingArchive(store, read))

    assert before.keys() < live.place.archive.sizes().keys()
    assert not before.keys() & set(read)
    assert find_damage(live.place, [manifest.id]) == []


class ReadNotingArchive:
    """An archive that notes which objects are read."""

    def __init__(self, store, read):
        self._store, self._read = store, read

    def read_range(self, location):
        self._read.append(location.key)
        return self._store.read_range(location)

    def close(self):
        self._store.close()


def test_old_backups_go_with_what_only_they_need(live):
    """The newest backups stay, with all their pieces and objects. (B17)"""
    first = live.back_up()
    live.publish(1)
    second = live.back_up()

    live.place.remove_backups([first.id])

    assert live.place.ids() == [second.id]
    assert find_damage(live.place, [second.id]) == []
    assert set(live.place.archive.sizes()) == {each.key for each in live.place.read_objects(second.objects)}


def test_without_an_indexer_no_backup_is_made(live, monkeypatch):
    """If the log indexer does not catch up, newer events would be missing, so the command fails. (B15)"""
    monkeypatch.setattr(stage_module, "MAX_LOOKS_AT_INDEX", 3)
    live.api.post(f"/event-types/{live.name}/events", json=[{"n": "new"}]).raise_for_status()

    with pytest.raises(BackupFailed, match=r"The log indexer of nakadi-live is \d+ seconds behind"):
        live.back_up(lambda _: None)

    assert live.place.ids() == []


def test_a_stage_without_a_stream_is_refused_at_once(live):
    """Without a stream in Kinesis, the events are in MSK, and the command does not wait for the indexer. (B23)"""
    live.resources.delete_stream()

    with pytest.raises(BackupFailed, match="There is no stream nakadi-live in eu-central-1"):
        live.back_up(wait_until_indexed=lambda _: pytest.fail)

    assert live.place.ids() == []


def test_what_does_not_fit_is_copied_again(live):
    """If a part of the index was replaced while it was read, the tables are copied again. (B16)"""
    copies = []

    def lossy(query):
        def answer(table, key):
            items = list(query(table, key))
            if table is LOG_INDEX_TABLE and key.startswith("segments#") and items and len(copies) < 2:
                copies.append(key)
                return []
            return items

        return answer

    manifest = live.back_up(query=lossy)

    assert len(copies) == 2
    assert find_damage(live.place, [manifest.id]) == []


def test_what_never_fits_is_no_backup(live):
    """If five copies in a row are inconsistent, the command reports what is inconsistent, and makes no backup. (B16)"""
    attempts = []

    def without_topics(query):
        def answer(table, key):
            attempts.append(key)
            return [] if key.startswith("topic#") else query(table, key)

        return answer

    with pytest.raises(BackupFailed, match="is not in the index"):
        live.back_up(query=without_topics)

    assert live.place.ids() == []
    assert len(attempts) >= MAX_COPIES


def test_an_object_that_is_missing_is_named(live):
    """A backup names the objects that the archive lacks, and is restored only if the loss is accepted. (B20)"""
    [lost, *_] = live.resources.archived_keys()
    live.resources.remove_object(lost)

    manifest = live.back_up()

    assert manifest.missing == [lost]
    live.resources.delete()
    with pytest.raises(BackupFailed, match="--accept-loss"):
        live.restore(manifest)
    assert live.restore(manifest, accept_loss=True) == [
        f"The archive object {lost} was missing when the backup was made."
    ]


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("folder", ["pieces", "archive", "backups"])
def test_damage_is_found(live, tmp_path, folder):
    """Verifying reads every byte and finds a changed one, and no damaged backup is restored. (B18, B20)"""
    manifest = live.back_up()
    files = sorted(path for path in (tmp_path / "backups" / NAME / folder).rglob("*") if path.is_file())
    for path in files:
        before = path.read_bytes()
        flip_byte(path)
        if folder == "archive":
            with pytest.raises(BackupFailed, match="is damaged in the backup"):
                live.restore(manifest)
        assert find_damage(live.place, [manifest.id]) != []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(before)
    assert find_damage(live.place, [manifest.id]) == []


def test_a_damaged_object_is_stored_again(live, tmp_path):
    """An object that `--verify` found damaged is intact in the next backup. (B18)"""
    manifest = live.back_up()
    [copied, *_] = live.place.read_objects(manifest.objects)
    flip_byte(tmp_path / "backups" / NAME / "archive" / copied.key)
    assert find_damage(live.place, [manifest.id]) == [
        f"Backup {manifest.id}: the archive object {copied.key} is damaged or missing."
    ]

    live.back_up()

    assert find_damage(live.place, live.place.ids()) == []


class Killed(Exception):
    pass


@pytest.mark.parametrize("writes", range(4))
def test_an_interrupted_restoration_is_finished_by_the_next(live, writes):
    """The same command continues where it was interrupted, and another backup is refused. (B19)"""
    live.resources.write_table("order_placed", ["a"])
    manifest = live.back_up()
    left = iter(range(writes))

    def until_killed(put):
        def answer(table, items):
            if next(left, None) is None:
                raise Killed
            put(table, items)

        return answer

    with pytest.raises(Killed):
        live.restore(manifest, put=until_killed)
    if writes:
        other = live.back_up()
        with pytest.raises(BackupFailed, match="is not empty"):
            live.restore(other)

    assert live.restore(manifest) == []
    with pytest.raises(BackupFailed, match=r"The table nakadi-live-documents is not empty"):
        live.restore(manifest)
    assert live.second.table_location("order_placed").startswith(f"s3://{live.second.tables_bucket}/")
    with closing(live.second.open()) as second:
        assert MARK_KIND not in {item["kind"]["S"] for item in second.scan(DOCUMENTS_TABLE)}


@pytest.mark.parametrize("other_format", [1, FORMAT + 1])
def test_a_backup_in_another_format_is_refused(live, other_format):
    """A backup in a format that this version does not write is refused, rather than restored in part. (B20)"""
    manifest = replace(live.back_up(), format=other_format)
    live.place.add_manifest(manifest)

    with pytest.raises(BackupFailed, match=f"has format {other_format}, but this version reads {FORMAT}"):
        live.place.read_manifest(manifest.id)
