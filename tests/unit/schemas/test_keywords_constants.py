"""The constants that generated code uses."""

from nakadi.schemas.keywords import CodeConstants


def test_a_constant_gets_a_generated_name():
    """A value gets a generated name, and the code sees only the given values. (P56)"""
    constants = CodeConstants({"len": len})
    name = constants.add_constant("__import__")

    assert name.isidentifier()
    assert constants.namespace == {"__builtins__": {}, "len": len, name: "__import__"}


def test_a_string_has_one_name():
    """A string has one name, however often it is used. (P56)"""
    constants = CodeConstants({})

    assert constants.add_text_once("a") == constants.add_text_once("a") != constants.add_text_once("b")
    assert constants.namespace[constants.add_text_set(["a", "b"])] == {"a", "b"}
