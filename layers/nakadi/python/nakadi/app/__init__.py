"""The application: wires a broker from settings, and contains the programs and functions that run it.

This package imports every room except `local`; of the rooms, only `local` imports this one. Begin reading with
`engines`, then read `broker`.
"""
