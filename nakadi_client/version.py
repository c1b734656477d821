"""The version of this package, which the metadata of the distribution takes from here."""

__version__ = "0.1.0"
