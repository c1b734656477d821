"""The values that generated code works with."""

from nakadi.schemas.keywords import Constants


def test_names():
    """A value is known by a name made here, and code sees nothing else but what it was given. (P56)"""
    constants = Constants({"len": len})
    name = constants.name_of("__import__")

    assert name.isidentifier()
    assert constants.namespace == {"__builtins__": {}, "len": len, name: "__import__"}


def test_texts():
    """A text has one name, however often it comes. (P56)"""
    constants = Constants({})

    assert constants.name_of_text("a") == constants.name_of_text("a") != constants.name_of_text("b")
    assert constants.namespace[constants.name_of_texts(["a", "b"])] == {"a", "b"}
