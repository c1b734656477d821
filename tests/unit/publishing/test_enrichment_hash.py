import pytest
from hypothesis import given
from hypothesis import strategies as some

from nakadi.publishing.enrichment import as_signed_32_bit, java_string_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("Hello", 69609650),
        ("true", 3569038),
        ("null", 3392903),
        ("1.0", 48563),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
        ("<><%?>#<)#%(<*J%H\n\n)R&#89hb678n(*njyih48p3u bn7\t843h 743h yh", -706818463),
    ],
)
def test_the_hash_is_java_s(text, value):
    """A string hashes as in Java: 31 times the previous value plus the UTF-16 unit, as a signed 32-bit integer. (P82,
    P95)"""
    assert as_signed_32_bit(java_string_hash(text)) == value


@given(some.text(some.characters(exclude_categories=["Cs"]), max_size=300))
def test_the_hash_of_any_text(text):
    """Long strings and characters beyond ASCII are hashed as in Java, too, unit by unit. (P82)"""
    units = text.encode("utf-16-be")
    total = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        total = (31 * total + 256 * high + low) % 2**32
    assert as_signed_32_bit(java_string_hash(text)) == (total if total < 2**31 else total - 2**32)
