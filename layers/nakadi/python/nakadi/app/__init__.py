"""The application: it wires a broker from settings, and contains the programs and functions that run it.

It knows every other room except `local`, and only `local` knows it. Begin reading with `engines`, then the broker.
"""
