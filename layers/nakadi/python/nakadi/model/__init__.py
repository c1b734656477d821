"""The nouns of the broker: frozen values and outcomes, which need only the standard library and `msgspec`."""
