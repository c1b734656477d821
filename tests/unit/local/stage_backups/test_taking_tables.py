"""The Iceberg tables in a stage's backup."""

import json
from contextlib import closing

import pytest

from nakadi.engines.dynamodb.tables import DOCUMENTS_TABLE
from nakadi.local.backups.store import BackupFailed
from nakadi.local.stage_backups.iceberg import read_table
from nakadi.local.stage_backups.taking import find_damage
from tests.support.stages import NAME

FOLDER = "nakadi_live.db/order_placed"


def table_state(name):
    body = {"table": name, "next": {}, "rows": 2, "misfits": 0, "missing": 0, "updated_at": "2026-11-27T10:00:00Z"}
    texts = {"kind": "tables", "key": f"id of {name}", "body": json.dumps(body), "written_by": "a job"}
    return {**{member: {"S": text} for member, text in texts.items()}, "revision": {"N": "1"}}


def rows_of(resources, name):
    """The rows of a table, found as a reader finds them."""
    bucket = f"s3://{resources.tables_bucket}/"

    def read(key):
        return resources.read_table_file(key)

    metadata = json.loads(read(resources.table_location(name).removeprefix(bucket)))
    return metadata, [read(key).decode() for key in read_table(metadata, bucket, read).data_files]


def test_tables_are_restored_into_another_bucket(live):
    """Tables, with what jobs have stored about their progress and state, are in the new stage's catalog, and nothing
    in them names the old bucket. (B22)
    """
    live.resources.write_table("order_placed", ["a", "b"])
    with closing(live.resources.open()) as stage:
        stage.put(DOCUMENTS_TABLE, [table_state("order_placed"), table_state("elsewhere")])
    manifest = live.back_up()
    assert find_damage(live.place, [manifest.id]) == []
    old_bucket = live.resources.tables_bucket
    live.resources.delete()

    assert live.restore(manifest) == []

    metadata, rows = rows_of(live.second, "order_placed")
    assert rows == ["a", "b"]
    assert metadata["properties"]["nakadi.progress"] == "7"
    assert len(metadata["snapshots"]) == 1
    assert not [key for key in live.second.table_keys() if old_bucket.encode() in live.second.read_table_file(key)]
    with closing(live.second.open()) as second:
        states = [item["key"]["S"] for item in second.scan(DOCUMENTS_TABLE) if item["kind"]["S"] == "tables"]
    assert states == ["id of order_placed"]


def test_later_backups_store_only_new_files_of_tables(live):
    """A file that is already in the destination is not read again, and is removed with the last backup that needs it.
    (B17, B22)
    """
    live.resources.write_table("order_placed", ["a", "b"])
    first = live.back_up()
    live.resources.write_table("order_placed", ["b", "c"], snapshot=2)
    second = live.back_up()
    assert {f"{FOLDER}/data/{each}.parquet" for each in "abc"} <= live.place.tables.sizes().keys()

    live.place.remove_backups([first.id])

    assert find_damage(live.place, [second.id]) == []
    kept = {each.key for each in live.place.read_objects(second.table_files)}
    assert live.place.tables.sizes().keys() == kept
    assert f"{FOLDER}/data/a.parquet" not in kept


def test_a_table_that_changes_meanwhile_is_copied_again(live):
    """If a job removes a file before it is copied, the next copy has the table's later state. (B16, B22)"""
    live.resources.write_table("order_placed", ["a"])

    def replacing(wait_until_indexed):
        def replace_and_wait(*times):
            if live.resources.table_location("order_placed").endswith("/1.metadata.json"):
                live.resources.write_table("order_placed", ["b"], snapshot=2)
                live.resources.remove_table_file(f"{FOLDER}/data/a.parquet")
            wait_until_indexed(*times)

        return replace_and_wait

    manifest = live.back_up(wait_until_indexed=replacing)

    assert find_damage(live.place, [manifest.id]) == []
    assert f"{FOLDER}/data/b.parquet" in {each.key for each in live.place.read_objects(manifest.table_files)}


def test_a_table_is_not_ahead_of_the_log(live):
    """What a job adds while the command waits for the log is not in the backup: the copied log may lack these events.
    (B16, B22)
    """
    live.resources.write_table("order_placed", ["a"])

    def adding(wait_until_indexed):
        def add_and_wait(*times):
            live.resources.write_table("order_placed", ["a", "b"], snapshot=2)
            wait_until_indexed(*times)

        return add_and_wait

    manifest = live.back_up(wait_until_indexed=adding)

    [table] = live.place.read_tables(manifest)
    assert table.metadata["current-snapshot-id"] == 1
    assert f"{FOLDER}/data/b.parquet" not in live.place.tables.sizes()


def test_damage_in_a_table_is_found(live, tmp_path):
    """Every byte of a table is read; a damaged table is left out of a restoration that accepts the loss. (B18, B20,
    B22)
    """
    live.resources.write_table("order_placed", ["a"])
    live.resources.write_table("order_paid", ["p"])
    manifest = live.back_up()
    for path in sorted((tmp_path / "backups" / NAME / "tables" / FOLDER).rglob("*.*")):
        before = path.read_bytes()
        path.write_bytes(b"x" + before)
        assert any(path.name in each for each in find_damage(live.place, [manifest.id]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(before)
    assert find_damage(live.place, [manifest.id]) == []
    path.write_bytes(b"x")

    with pytest.raises(BackupFailed, match="The table order_placed cannot be restored"):
        live.restore(manifest)

    assert [each[:38] for each in live.restore(manifest, accept_loss=True)] == [
        "The table order_placed is not restored"
    ]
    assert rows_of(live.second, "order_paid")[1] == ["p"]


def test_a_table_in_another_place_is_named(live):
    """The command names each table whose files are not in the stage's bucket, and why. (B22)"""
    live.resources.write_table("order_placed", ["a"])

    manifest = live.back_up(tables_url=lambda _: "s3://another-bucket/")

    [reason] = live.left_out
    assert reason.startswith(f"It does not have the table order_placed: s3://{live.resources.tables_bucket}/{FOLDER}/")
    assert reason.endswith(" is not in s3://another-bucket/.")
    assert list(live.place.read_tables(manifest)) == []
