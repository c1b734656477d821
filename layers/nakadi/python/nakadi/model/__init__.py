"""The nouns of the broker: frozen values and the outcomes, which need only the standard library and `msgspec`."""
