"""The application: wires a broker from settings, and contains the programs and functions that run it.

This package imports every other room except `local`, and only `local` imports it. Begin reading with `engines`, then
read `broker`.
"""
