"""The program behind `nakadi restore`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nakadi.engines.sqlite.file import BadDataFile
from nakadi.local.backups.restoring import restore_backup
from nakadi.local.backups.store import BackupFailed, open_store
from nakadi.model.outcomes import Unavailable

DONE, NOT_DONE = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse_options(arguments)
    try:
        if options.stage:
            # The AWS SDK is installed only where stages are restored.
            from nakadi.local.stage_backups.program import restore_into_stage  # noqa: PLC0415

            return restore_into_stage(options)
        return _restore(options)
    except (BackupFailed, BadDataFile, Unavailable) as reason:
        print(f"Nothing usable was restored. {reason}", file=sys.stderr)
    except OSError as error:
        print(f"Nothing usable was restored: {error}.", file=sys.stderr)
    return NOT_DONE


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="nakadi restore",
        description="Restore a backup of `nakadi backup` into a data folder, which must be empty or not exist. Then "
        "start the broker with it. With --stage, restore it into a stage of which only the data stack was deployed.",
    )
    parser.add_argument("source", metavar="FROM", help="the folder with backups; for a stage also a bucket")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the data folder to restore, default ./data")
    parser.add_argument("--stage", metavar="NAME", help="a stage instead, as its resources begin: nakadi-live")
    parser.add_argument("--region", help="the region of the stage, default AWS_REGION")
    parser.add_argument(
        "--backup", metavar="ID", help="which backup, as `nakadi backup --list` names it; default the newest"
    )
    parser.add_argument(
        "--accept-loss", action="store_true", help="omit files that the backup has lost, except the data file"
    )
    return parser.parse_args(arguments)


def _restore(options: argparse.Namespace) -> int:
    with open_store(Path(options.source), writes=False) as store:
        ids = store.ids()
        if not ids:
            raise BackupFailed(f"{options.source} has no complete backup.")
        manifest = store.read_manifest(options.backup or ids[-1])
        for loss in restore_backup(store, manifest, options.data, accept_loss=options.accept_loss):
            print(loss, file=sys.stderr)
    print(f"{options.data} is as it was at {manifest.began_at.isoformat(timespec='seconds')}, or a moment later.")
    tables_moved = str(options.data.absolute()) != manifest.data
    if tables_moved and any(file.path.endswith(".metadata.json") for file in manifest.files):
        print(
            f"Its tables name their files by the old place, {manifest.data}: move the folder there, or remove the "
            "tables, and let `nakadi jobs all` write them again from the archive.",
            file=sys.stderr,
        )
    return DONE


if __name__ == "__main__":
    sys.exit(main())
