"""The programs behind `nakadi backup --stage` and `nakadi restore --stage`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing

from nakadi.local.backups.store import BackupFailed
from nakadi.local.stage_backups.place import BackupPlace, StageManifest, open_place
from nakadi.local.stage_backups.restoring import restore_stage
from nakadi.local.stage_backups.stage import Stage, StageAddress
from nakadi.local.stage_backups.taking import find_damage, take_stage_backup
from nakadi.ports.clock import SystemClock

DONE, NOT_DONE = 0, 1
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")


def run_stage_backup_command(options: argparse.Namespace, version: str, environ: Mapping[str, str] = os.environ) -> int:
    """Make, list or verify backups. Raises `BackupFailed` and `Unavailable`."""
    only_reads = options.list or options.verify
    with open_place(options.to, options.stage, creates=not only_reads) as place:
        if options.list:
            return _list_backups(place)
        if options.verify:
            return _verify_backups(place)
        with closing(Stage(_address(options, environ))) as stage:
            manifest, left_out = take_stage_backup(place, stage, SystemClock().now, version)
        print(f"The backup {manifest.id} is complete: {_describe(manifest)}.")
        for each in left_out:
            print(each, file=sys.stderr)
        if options.keep:
            _remove_old_backups(place, options.keep)
    for key in manifest.missing:
        print(f"The archive object {key} is missing, and so are its events.", file=sys.stderr)
    return NOT_DONE if manifest.missing else DONE


def restore_into_stage(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Restore a backup. Raises `BackupFailed` and `Unavailable`."""
    with open_place(options.source, options.stage) as place, closing(Stage(_address(options, environ))) as stage:
        manifest = place.read_manifest(options.backup or place.newest())
        for loss in restore_stage(place, manifest, stage, accept_loss=options.accept_loss):
            print(loss, file=sys.stderr)
    moment = manifest.began_at.isoformat(timespec="seconds")
    print(
        f"{options.stage} has everything that was acknowledged before {moment}. What was published or committed later "
        "is lost. Now deploy the rest of the stage."
    )
    return DONE


def _address(options: argparse.Namespace, environ: Mapping[str, str]) -> StageAddress:
    region = options.region or next((environ[name] for name in REGION_VARIABLES if environ.get(name)), None)
    if region is None:
        raise BackupFailed("Name the region of the stage with --region, or with AWS_REGION.")
    return StageAddress(options.stage, region)


def _list_backups(place: BackupPlace) -> int:
    for each in place.ids():
        manifest = place.read_manifest(each)
        print(f"{each}  {_describe(manifest)}, of {manifest.stage} in {manifest.region}, by version {manifest.version}")
    return DONE


def _verify_backups(place: BackupPlace) -> int:
    newest, ids = place.newest(), place.ids()
    damage = find_damage(place, ids)
    for each in damage:
        print(each, file=sys.stderr)
    if damage:
        print("The next backup stores damaged objects again, if the stage still has them.", file=sys.stderr)
        return NOT_DONE
    print(f"{len(ids)} {'backup is' if len(ids) == 1 else 'backups are'} whole; the newest is {newest}.")
    return DONE


def _remove_old_backups(place: BackupPlace, count: int) -> None:
    old = place.ids()[:-count]
    if old:
        place.remove_backups(old)
    for each in old:
        print(f"The backup {each} is removed.")


def _describe(manifest: StageManifest) -> str:
    archive, tables = manifest.archived_bytes / 1e6, manifest.table_bytes / 1e6
    return f"{manifest.event_types} event types, {archive:,.1f} MB of archive, {tables:,.1f} MB of tables"
