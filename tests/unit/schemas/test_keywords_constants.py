"""The values that generated code works with."""

from nakadi.schemas.keywords import CodeConstants


def test_names():
    """A value is known by a name made here, and code sees nothing else but what it was given. (P56)"""
    constants = CodeConstants({"len": len})
    name = constants.add_constant("__import__")

    assert name.isidentifier()
    assert constants.namespace == {"__builtins__": {}, "len": len, name: "__import__"}


def test_texts():
    """A text has one name, however often it comes. (P56)"""
    constants = CodeConstants({})

    assert constants.add_text_once("a") == constants.add_text_once("a") != constants.add_text_once("b")
    assert constants.namespace[constants.add_text_set(["a", "b"])] == {"a", "b"}
