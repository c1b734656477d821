"""What is wrong with an event, in words."""

from nakadi.schemas.violation import MOST_LINES, Violation, cut, member, mismatch, quoted, together


def test_one():
    """One violation stays as it is, and none is none. (P71)"""
    one = Violation("#/a", "is wrong")

    assert together("#", (one,)) is one
    assert together("#", ()) is None


def test_several():
    """Several are counted with all that is inside of them, each telling its place. (P71)"""
    inside = together("#/b", (Violation("#/b/c", "is wrong"), Violation("#/b/d", "is wrong")))
    outside = together("#", (Violation("#/a", "is wrong"), inside))

    assert list(outside.lines()) == [
        "#: 3 schema violations found",
        "#/a: is wrong",
        "#/b: 2 schema violations found",
        "#/b/c: is wrong",
        "#/b/d: is wrong",
    ]


def test_very_many():
    """Beyond a bound nobody counts. (P71)"""
    many = together("#", tuple(Violation(f"#/{each}", "is wrong") for each in range(MOST_LINES + 1)))

    assert many.text == "more than 100 schema violations found"


def test_quoting():
    """Texts are quoted as they are, other values as JSON, and neither at any length. (P72)"""
    assert quoted("a") == "a"
    assert quoted(None) == "null"
    assert quoted({"ä": [1.5, True]}) == '{"ä":[1.5,true]}'
    assert quoted("a" * 2_000) == cut("a" * 2_000) == "a" * 1_000 + "…"


def test_types():
    """Types have the names that Java has for them. (P72)"""
    assert mismatch("string", 1) == "expected type: String, found: Integer"
    assert mismatch("object", 2**40) == "expected type: JSONObject, found: Long"


def test_places():
    """A member's name is escaped in its pointer. (P71)"""
    assert member("#/a", "b/~c") == "#/a/b~1~0c"
