"""Backups of a stage on AWS, taken while it runs, and restored into another account or region.

`place` keeps backups in a folder or a bucket; `stage` reads and writes the tables and the archive of a stage;
`contents` knows what their items mean, whether they fit each other, and which form they get in a new stream, and
`iceberg` which form the tables of the jobs get in another bucket. `taking` and `restoring` bring these together, and
`program` is behind `nakadi backup --stage` and `nakadi restore --stage`. Begin with `taking`.
"""
