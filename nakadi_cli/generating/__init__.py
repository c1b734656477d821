"""Types from schemas, schemas from events and models, and example events: pure functions without input and output.

`reading` turns schemas into the declarations of `declarations`, which `python`, `typescript`, `kotlin`, `go` and `java`
write as source text. `inference` and `model_schemas` propose schemas; `examples` and `violations` make events for
tests, which the broker's own validator judges. The generators know only the broker's rules about schemas.
"""
