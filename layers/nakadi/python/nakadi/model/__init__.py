"""The nouns of the broker: frozen values and the outcomes, knowing nothing but the standard library and `msgspec`."""
