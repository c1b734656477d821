"""The jobs on the archive: `compaction`, `statistics`, `retention` and `follow`, for a laptop and for AWS Glue.

They use the package `nakadi`, which imports nothing from this package. Begin reading at the modules with those names:
`command` opens what a job works with, `archive_ranges` finds the parts of the archive to read, `gathering` copies them
for Spark, `columns` and `transform` turn lines into rows, and `tables` writes them. `event_type_tables` has the tables
of an event type, and `layout` their partitions and order. `quality` reports which events a run added, and their
defects.
"""
