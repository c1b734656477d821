"""The constructs' public interface explains itself."""

import ast
import inspect
from dataclasses import fields

import pytest

import nakadi_cdk
from nakadi_cdk import Context


def test_each_field_of_a_context_says_its_default():
    tree = ast.parse(inspect.getsource(Context))
    [definition] = tree.body
    assert isinstance(definition, ast.ClassDef)
    docstrings = {
        field.target.id: docstring.value.value
        for field, docstring in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr)
    }
    assert set(docstrings) == {each.name for each in fields(Context)}
    for field in fields(Context):
        default = "{}" if field.name == "settings" else repr(field.default).replace("'", '"')
        assert f"Default: {default}" in docstrings[field.name], field.name


@pytest.mark.parametrize("construct", ["NakadiAnalytics", "NakadiBroker", "NakadiData", "Network"])
def test_each_parameter_of_a_construct_is_explained(construct):
    """The docstring of a construct explains each parameter, with its default if it has one, and has an example."""
    construct = getattr(nakadi_cdk, construct)
    explanation = inspect.getdoc(construct)
    for name, parameter in inspect.signature(construct.__init__).parameters.items():
        if name == "self":
            continue
        [line] = [each for each in explanation.split("\n:param ") if each.startswith(f"{name}: ")]
        assert parameter.default is parameter.empty or "Default: " in line
    assert f"{construct.__name__}(" in explanation


def test_each_public_name_has_a_docstring():
    for name in nakadi_cdk.__all__:
        public = getattr(nakadi_cdk, name)
        assert public.__doc__, name
        for attribute, value in public.__dict__.items():
            if isinstance(value, property) and not attribute.startswith("_"):
                assert value.__doc__, f"{name}.{attribute}"
