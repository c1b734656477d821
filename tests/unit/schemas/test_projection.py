"""Reducing the text of events to the members that a reader needs."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nakadi.model.events import EventTextBlock
from nakadi.schemas.projection import Projection
from tests.support.builders import A_MOMENT

NAMES = ["a", "b", "metadata", 'q"', "back\\slash", "line\n", "ü", "", "a.b", "\u2028", "😀"]


def cut(text, *paths):
    return json.loads(Projection([tuple(path) for path in paths]).cut(text.encode()))


def model(value, paths):
    """Project a parsed value to these paths, in a slow and simple way."""
    if isinstance(value, list):
        return [model(each, paths) for each in value]
    if not isinstance(value, dict):
        return None
    kept = {}
    for name, inner in value.items():
        rests = [path[1:] for path in paths if path[0] == name]
        if () in rests:
            kept[name] = inner
        elif rests:
            kept[name] = model(inner, rests)
    return kept


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=20,
)
paths = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), max_size=5)


@given(values, paths, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_what_is_cut_is_what_a_parser_would_keep(value, paths, ascii_only, indent):
    """For any event in any spelling, the projection has the same values as a slow projection of the parsed event.
    (D11)
    """
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    found = Projection(paths).cut(text.encode("utf-8", "surrogatepass"))
    assert json.loads(found) == model(value, paths)


def test_kept_values_are_copied_byte_for_byte():
    """Numbers and escapes keep their spelling. (D11)"""
    text = rb'{"a":1.50e+2,"b":{"c":[ "\u00e9\/" ,12345678901234567890123]},"d":0}'
    assert Projection([("a",), ("b", "c")]).cut(text) == (
        rb'{"a":1.50e+2,"b":{"c":[ "\u00e9\/" ,12345678901234567890123]}}'
    )


@pytest.mark.parametrize(
    ("text", "path", "kept"),
    [
        (r'{"\u0061":1,"b":2}', ["a"], {"a": 1}),
        (r'{"q\"":1,"b":2}', ['q"'], {'q"': 1}),
        (r'{"\u2028":{"\n":1,"x":2}}', ["\u2028", "\n"], {"\u2028": {"\n": 1}}),
        (r'{"b":"}","x":"\"a\":1","a":"\\"}', ["a"], {"a": "\\"}),
        ('{"a":1,"b":{"a":2}}', ["b", "b"], {"b": {}}),
    ],
)
def test_names_are_found_however_they_are_written(text, path, kept):
    """Neither escapes in names nor text that looks like a member misleads the projection. (D11)"""
    assert cut(text, path) == kept


@pytest.mark.parametrize("name", ["a", 'q"'])
def test_the_last_of_repeated_members_counts(name):
    """If a member is repeated, the last one counts, as in JSON parsers, even if its name is escaped differently.
    (D11)
    """
    first, again = json.dumps(name), json.dumps(name).replace("a", r"\u0061")
    text = f'{{{first}:{{"x":1}},"z":0,{again}:{{"y":2,"x":3}}}}'
    assert cut(text, [name, "x"]) == {name: {"x": 3}}


def test_lists_are_transparent():
    """The items of lists are projected, including those of nested lists. (D11)"""
    text = '{"items":[{"sku":1,"x":2},[{"sku":3},{}],[]]}'
    assert cut(text, ["items", "sku"]) == {"items": [{"sku": 1}, [{"sku": 3}, {}], []]}


def test_what_is_no_object_where_a_path_goes_on_is_not_sent():
    """If a path continues at a value that is no object, the value becomes null, because nobody has declared to read
    it. (D11)
    """
    assert cut('{"customer":"Ann","items":[1,{"sku":2}]}', ["customer", "id"], ["items", "sku"]) == {
        "customer": None,
        "items": [None, {"sku": 2}],
    }


def test_an_object_that_is_read_is_kept_whole():
    """If an object is read as a whole, further paths inside it have no effect. (D11)"""
    assert cut('{"a":{"b":1,"c":2}}', ["a", "b"], ["a"]) == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", '{"a":', '{"a":1}}', '{"x":' + "[" * 100_000 + "]" * 100_000 + ',"a":1}', '{"a":1,"x":"\x00"}'],
)
def test_what_cannot_be_read_is_not_sent(text):
    """Text that is not JSON, or that is nested too deeply, becomes null. (D11)"""
    assert cut(text, ["a"]) is None


@given(values, paths)
def test_both_ways_lead_to_the_same_text(value, paths):
    """The result does not depend on whether an event matches the type of its projection. (D11)"""
    text = json.dumps(value).encode()
    projection = Projection(paths)
    assert projection.cut(text) == projection.cut_slowly(text)


def test_paths_make_no_more_types_than_they_have_objects(monkeypatch):
    """The event loop creates the types, so a deep path creates one type for each of its objects, not one for each pair
    of objects. (D11)"""
    made = []
    make = msgspec.defstruct
    monkeypatch.setattr(msgspec, "defstruct", lambda *rest, **named: made.append(rest) or make(*rest, **named))
    deep = tuple(f"m{number}" for number in range(64))
    Projection([deep])
    assert len(made) == 64


def test_very_many_objects_need_no_types(monkeypatch):
    """For the maximum number of paths and steps, no types are created, so that a stream starts without delay. (D11)"""
    made = []
    make = msgspec.defstruct
    monkeypatch.setattr(msgspec, "defstruct", lambda *rest, **named: made.append(rest) or make(*rest, **named))
    steps = [f"m{number}" for number in range(63)]
    projection = Projection([(f"{number}", *steps) for number in range(200)])
    assert not made
    assert json.loads(projection.cut(b'{"7":{"m0":{"m1":1,"x":2}},"x":3}')) == {"7": {"m0": {"m1": None}}}


def cut_all(projection, texts):
    block = EventTextBlock.join(0, A_MOMENT, texts)
    return projection.cut_all(block.text, block.ends)


@settings(max_examples=30)
@given(st.lists(values, min_size=1, max_size=4), paths, st.sampled_from(["", "]", "1,2", '{"a":']))
def test_many_events_are_cut_like_one(events, paths, broken):
    """The projection of many events is that of each alone: if all match, if one does not match, and if one is not JSON.
    (D11)
    """
    projection = Projection(paths)
    for texts in (
        [json.dumps(each).encode("utf-8", "surrogatepass") for each in events],
        [*[json.dumps({"a": each}).encode("utf-8", "surrogatepass") for each in events], broken.encode()],
        [b"1,2", b"{}"],
    ):
        assert cut_all(projection, texts) == list(map(projection.cut, texts))


def test_events_that_fit_are_cut_by_one_call(monkeypatch):
    """Events that match are cut by a single call, because one call for each event would take longer. (D11)"""
    projection = Projection([("a",), ("b", "c")])
    monkeypatch.setattr(projection, "cut", None)
    texts = [b'{"a":%d,"b":[{"c":1,"d":2}]}' % number for number in range(3)]
    assert cut_all(projection, texts) == [b'{"a":%d,"b":[{"c":1}]}' % number for number in range(3)]
