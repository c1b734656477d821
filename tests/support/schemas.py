"""Draws schemas and values as strangers might write them, for tests that compare two validators."""

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c", "", "a/b", "é", "$ref", "type"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, 1.0, 0.5, -2.5, 1e300]),
    st.sampled_from(["", "a", "b", "ab", "aaa", "12", "ü"]),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda within: st.lists(within, max_size=3) | st.dictionaries(NAMES, within, max_size=3),
    max_leaves=8,
)

_SMALL = st.integers(0, 3)
_BOUNDS = st.sampled_from([-1, 0, 1, 0.5, 2])
_TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
_PATTERNS = st.sampled_from(["a", "^a+$", "^$", "[0-9]", "."])
_COMBINATORS = ("allOf", "anyOf", "oneOf")


def _with_definitions(schema: st.SearchStrategy[Any], draft: int) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda body, definitions: {
            **body,
            "$schema": f"http://json-schema.org/draft-0{draft}/schema#",
            "definitions": {"one": {}, "two": {}, **definitions},
        },
        schema,
        st.dictionaries(st.sampled_from(["one", "two"]), schema, max_size=2),
    )


def schemas(draft: int) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of a draft that validators can load, unless references lead in a circle."""
    leaves = st.one_of(
        _keywords(draft, st.just({})),
        st.sampled_from(["#", "#/definitions/one", "#/definitions/two"]).map(lambda reference: {"$ref": reference}),
    )
    return _with_definitions(st.recursive(leaves, lambda within: _keywords(draft, within), max_leaves=6), draft)


def _keywords(draft: int, within: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.lists(_keyword(draft, within), max_size=4).map(_merge_parts)


def _merge_parts(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge parts into a schema: it may have at most one combinator, and a flag for a bound needs the bound."""
    merged = {keyword: value for part in parts for keyword, value in part.items()}
    for extra in [each for each in _COMBINATORS if each in merged][1:]:
        del merged[extra]
    return merged


def _keyword(draft: int, within: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    named = st.dictionaries(NAMES, within, max_size=3)
    listed = st.lists(within, min_size=1, max_size=3)
    possible: dict[str, st.SearchStrategy[Any]] = {
        "type": _TYPES | st.lists(_TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=4),
        "minLength": _SMALL,
        "maxLength": _SMALL,
        "pattern": _PATTERNS,
        "minimum": _BOUNDS,
        "maximum": _BOUNDS,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minItems": _SMALL,
        "maxItems": _SMALL,
        "uniqueItems": st.booleans(),
        "items": within | listed,
        "additionalItems": st.booleans() | within,
        "minProperties": _SMALL,
        "maxProperties": _SMALL,
        "required": st.lists(NAMES, min_size=1, max_size=3, unique=True),
        "properties": named,
        "patternProperties": st.dictionaries(_PATTERNS, within, max_size=2),
        "additionalProperties": st.booleans() | within,
        "dependencies": st.dictionaries(NAMES, st.lists(NAMES, min_size=1, unique=True) | within, max_size=2),
        "not": within,
        **dict.fromkeys(_COMBINATORS, listed),
    }
    if draft == 4:
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            possible[exclusive] = st.tuples(st.booleans(), _BOUNDS, st.just(bound))
    else:
        possible |= {
            "exclusiveMinimum": _BOUNDS,
            "exclusiveMaximum": _BOUNDS,
            "const": VALUES,
            "contains": within,
            "propertyNames": within,
        }
    if draft == 7:
        possible |= {"if": within, "then": within, "else": within}
    return st.one_of([values.map(_draw_keyword(keyword)) for keyword, values in possible.items()])


def _draw_keyword(keyword: str) -> Any:
    def keywords_for(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            flag, number, bound = value
            return {keyword: flag, bound: number}
        return {keyword: value}

    return keywords_for
