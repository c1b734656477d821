"""Backups of a data folder, taken while its broker runs, and restored into an empty folder.

`store` keeps files in pieces, each once; `taking` defines what a data folder contains and in which order it is copied;
`restoring` writes a backup into a folder. `backup` and `restore` are the programs behind `nakadi backup` and `nakadi
restore`. Begin with `taking`.
"""
