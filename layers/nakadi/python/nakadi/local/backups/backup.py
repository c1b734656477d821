"""The program behind `nakadi backup`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from nakadi.engines.sqlite.file import SCHEME, BadDataFile
from nakadi.local.backups.store import BackupFailed, BackupStore, Manifest, open_store
from nakadi.local.backups.taking import ARCHIVE, DATA_FILE, DataFolder, take_backup
from nakadi.model.outcomes import Unavailable
from nakadi.ports.clock import SystemClock

DONE, NOT_DONE = 0, 1
STORE_VARIABLES = ("NAKADI_REGISTRY", "NAKADI_EVENT_LOG", "NAKADI_COORDINATION", "NAKADI_LOG_INDEX")


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    options = _parse_options(arguments)
    try:
        if options.stage:
            # The AWS SDK is installed only where stages are backed up.
            from nakadi.local.stage_backups.program import run_stage_backup_command  # noqa: PLC0415

            return run_stage_backup_command(options, _version(), environ)
        if options.list:
            return _list_backups(Path(options.to))
        if options.verify:
            return _verify_backups(Path(options.to))
        return _back_up(options, environ)
    except (BackupFailed, BadDataFile, Unavailable) as reason:
        print(f"No backup was made. {reason}" if not (options.list or options.verify) else reason, file=sys.stderr)
    except OSError as error:
        print(f"It failed with {error}. Backups that were complete still are.", file=sys.stderr)
    return NOT_DONE


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="nakadi backup",
        description="Back up the data folder of a broker on this machine, or a stage on AWS, while it runs. Files that "
        "an earlier backup in the same place has are not stored again.",
        epilog="`nakadi restore` restores a backup. A backup has every event, and the key to the secrets of sinks: "
        "only its owner may read it.",
    )
    parser.add_argument(
        "to",
        metavar="TO",
        help="the folder for backups, which is created if it does not exist; for a stage also a bucket",
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="the broker's data folder, default ./data")
    parser.add_argument("--stage", metavar="NAME", help="a stage instead, as its resources begin: nakadi-live")
    parser.add_argument("--region", help="the region of the stage, default AWS_REGION")
    parser.add_argument(
        "--keep", type=_positive_integer, metavar="N", help="afterwards, remove all backups except the N newest"
    )
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--verify", action="store_true", help="make no backup; read all backups in TO, and check them")
    alone.add_argument("--list", action="store_true", help="make no backup; list the backups in TO")
    return parser.parse_args(arguments)


def _positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("it is at least 1")
    return int(text)


def _back_up(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    places = _stores_outside_folder(options.data, environ)
    folder = DataFolder(options.data, archives_here="NAKADI_ARCHIVE" not in places)
    with open_store(Path(options.to), writes=True, creates=True) as store:
        manifest = take_backup(store, folder, SystemClock().now, _version())
        print(f"The backup {manifest.id} is complete: {_describe(manifest)}, {_megabytes(store.new_bytes)} of it new.")
        for variable, place in places.items():
            print(f"It has nothing of {place} ({variable}), which needs a backup of its own.", file=sys.stderr)
        if options.keep:
            _remove_old_backups(store, options.keep)
    for key in manifest.missing:
        print(f"The archive object {key} is missing, and so are its events.", file=sys.stderr)
    return NOT_DONE if manifest.missing else DONE


def _stores_outside_folder(data: Path, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The stores that are not in the data folder, by the variables that name them."""
    here = {"", str(data / ARCHIVE), f"file://{(data / ARCHIVE).absolute()}"}
    here |= {SCHEME + str(data / DATA_FILE), SCHEME + str((data / DATA_FILE).absolute())}
    found = {name: environ.get(name, "") for name in (*STORE_VARIABLES, "NAKADI_ARCHIVE")}
    return {name: place for name, place in found.items() if place not in here}


def _remove_old_backups(store: BackupStore, count: int) -> None:
    old = store.ids()[:-count]
    store.remove_backups(old)
    for each in old:
        print(f"The backup {each} is removed.")


def _list_backups(folder: Path) -> int:
    with open_store(folder, writes=False) as store:
        for each in store.ids():
            manifest = store.read_manifest(each)
            print(f"{each}  {_describe(manifest)}, of {manifest.data}, by version {manifest.version}")
    return DONE


def _verify_backups(folder: Path) -> int:
    with open_store(folder, writes=True) as store:
        ids = store.ids()
        if not ids:
            raise BackupFailed(f"{folder} has no complete backup.")
        damage = store.verify(ids)
        for each in damage:
            print(each, file=sys.stderr)
        if damage:
            print("The next backup stores these files again, if the data folder still has them.", file=sys.stderr)
            return NOT_DONE
        print(f"{len(ids)} {'backup is' if len(ids) == 1 else 'backups are'} whole; the newest is {ids[-1]}.")
    return DONE


def _describe(manifest: Manifest) -> str:
    return f"{len(manifest.files)} files, {_megabytes(manifest.size)}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _version() -> str:
    try:
        return metadata.version("nakadi-serverless")
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
