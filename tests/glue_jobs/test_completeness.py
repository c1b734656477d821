import pytest

from nakadi_jobs.columns import BIGINT, STRING, Array, Field, Json, Struct, Texts
from nakadi_jobs.transform import members_in_columns, names_in


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Struct((Field("a", BIGINT),)), "(cast(v.`a` is not null as int))"),
        (Struct((Field("a", STRING, contested=True),)), "(0)"),
        (Struct((Field("a", Array(STRING)),)), "(cast(v.`a` is not null as int))"),
        (Struct(()), "(0)"),
        (
            Struct((Field("a", Struct((Field("b", BIGINT),))),)),
            "(if(v.`a` is null, 0, 1 + (cast(v.`a`.`b` is not null as int))))",
        ),
        (Struct((Field("a", Texts()),)), "(if(v.`a` is null, 0, 1 + coalesce(size(v.`a`), 0)))"),
    ],
)
def test_members_are_counted_by_type(kind, said):
    """Each member that a column holds counts once; one whose column was of another type counts for nothing."""
    assert members_in_columns("v", kind) == said


def test_elements_are_counted_one_by_one():
    """The members of the objects in a list count, each list with names of its own."""
    inner = Array(Struct((Field("c", BIGINT),)))
    said = members_in_columns("v", Struct((Field("a", Array(Struct((Field("b", inner),)))),)))
    assert "each0" in said
    assert "each1.`c`" in said


def test_names_in_free_text():
    """In free JSON only names that are certainly names count."""
    said = members_in_columns("v", Struct((Field("a", Json()),)))
    assert names_in("v.`a`") in said
    assert "div 3" in said
