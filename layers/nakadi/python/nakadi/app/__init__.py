"""The application: settings in, a wired broker out, and the programs and functions that run it.

It knows every other room, and none of them knows it. Begin reading with `engines`, then the broker.
"""
