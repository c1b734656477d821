"""Finds the Iceberg tables of the jobs: the file that describes the state that a table has now."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from nakadi_sql.errors import BadQuery


class TableFiles(Struct, frozen=True):
    """A state of a table: the file with its description, which never changes, and the folder with all of its files."""

    metadata: str
    folder: str


class Tables(Struct, frozen=True):
    """The tables in a folder, as the jobs write them with `--catalog hadoop`."""

    folder: str
    database: str = "nakadi"

    def find(self, name: str) -> TableFiles:
        """The state that a table has now. Raises `BadQuery` if there is no such table."""
        folder = Path(self.folder).absolute() / self.database / name
        metadata = folder / "metadata"
        try:
            number = int((metadata / "version-hint.text").read_text())
        except (OSError, ValueError):
            raise BadQuery(
                f"There is no table {folder}, though the broker knows it: --tables names the folder."
            ) from None
        # Whoever commits writes the hint last.
        while (metadata / f"v{number + 1}.metadata.json").exists():
            number += 1
        return TableFiles(str(metadata / f"v{number}.metadata.json"), str(folder))
