"""Backups of a stage on AWS, taken while it runs, and restored into another account or region.

`place` keeps backups in a folder or a bucket; `stage` reads and writes the tables and the archive of a stage;
`contents` interprets the items, checks whether they fit each other, and gives them the form for a new stream; `iceberg`
gives the tables of the jobs the form for another bucket. `taking` and `restoring` bring these together, and `program`
is behind `nakadi backup --stage` and `nakadi restore --stage`. Begin with `taking`.
"""
