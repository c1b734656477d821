"""The command line `nakadi`: a client of a broker's public HTTP API, and a way to start a broker on this machine."""

__version__ = "0.1.0"
"""The version of the whole distribution, with which it is built, and which `nakadi --version` prints."""
