"""The jobs on the archive: `compaction`, `statistics`, `retention` and `follow`, for a laptop and for AWS Glue.

They stand on the package `nakadi`, which imports nothing from here. Begin reading at the modules of those names:
`command` opens what a job works with, `archive_ranges` and `reading` say what there is to read, `columns` and
`transform` make rows of lines, and `tables` writes them. `event_type_tables` has the tables of an event type, and
`layout` how they are partitioned and sorted. `source` gives other programs events over HTTP as DataFrames.
"""
