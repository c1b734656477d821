import json
import weakref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from nakadi.model.outcomes import Malformed, TooLarge
from nakadi.publishing import batch as batches
from nakadi.publishing import memory, validation
from nakadi.publishing.batch import BatchLimits
from nakadi.publishing.validation import read_batch
from nakadi.schemas import strict_json
from tests.support.everything import choose_by_suite


@pytest.fixture(scope="module", autouse=True, params=["at once", "in pieces"])
def read_whole_or_in_pieces(request):
    """Every batch is read in both ways: at once, like short batches, and in pieces, like long ones."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in pieces":
            for module in (memory, validation):
                patch.setattr(module, "SHORT_BODY_BYTES", 0)
            for module in (batches, memory, validation):
                patch.setattr(module, "MAX_BATCH_PIECE_BYTES", 24)
        yield request.param


PREFIX = "Error occurred when parsing event(s). "


def refusal(body: bytes | str) -> str:
    with pytest.raises(Malformed) as caught:
        read_batch(body if isinstance(body, bytes) else body.encode())
    assert caught.value.detail.startswith(PREFIX)
    return caught.value.detail.removeprefix(PREFIX)


def texts(body: bytes | str) -> list[str]:
    return texts_of(read_batch(body if isinstance(body, bytes) else body.encode()))


def texts_of(batch) -> list[str]:
    return [bytes(text).decode() for piece in batch.in_pieces() for text in batches.ARRAY_DECODER.decode(piece.text)]


@pytest.mark.parametrize("body", ["[]", "[ ]", " \t\r\n[]\n", "[,]"])
def test_an_empty_array_has_no_events(body):
    """An array without events is a batch, even with whitespace around it or inside. (P19, P23)"""
    assert list(read_batch(body.encode()).events) == []


@pytest.mark.parametrize("body", ["{}", "null", "]", "x[{}]", '"[]"', "\ufeff[]", ""])
def test_a_batch_starts_as_an_array(body):
    """A body that does not begin with an array is refused with the position. (P19, P20, P22)"""
    assert refusal(body) == "Array of events should start with [ at position 0"


@pytest.mark.parametrize(("body", "position"), [("[", 0), ("[{}] x", 5), ('[{"a":1}', 7), ("[{}}", 3)])
def test_a_batch_ends_as_an_array(body, position):
    """A body that does not end its array is refused with the position. (P19, P21)"""
    assert refusal(body) == f"Array of events should end with ] at position {position}"


def test_blanks_alone_are_no_batch():
    """A body of whitespace is malformed; in the original, it was an internal error. (P28)"""
    assert refusal(" \n ") == "Array of events should start with [ at position 3"


@pytest.mark.parametrize(
    ("body", "position"),
    [("[1]", 1), ("[null]", 1), ('["a"]', 1), ("[[]]", 1), ('[{"a":1}}]', 8), ('[{"a":1}, true]', 10), ("[{}:{}]", 3)],
)
def test_events_are_objects(body, position):
    """Any value in the array that is not an object is refused with its position in the body. (P25, P36)"""
    assert refusal(body) == f"Illegal character at position {position}"


@pytest.mark.parametrize(
    ("body", "count"), [('[{"a":1},]', 1), ('[,,{"a":1}{"b":2}]', 2), ("[{} , , {}]", 2), ('[{"a":1}\n{"b":2},{}]', 3)]
)
def test_commas_between_events_do_not_matter(body, count):
    """There may be too few or too many commas between events. (P26)"""
    assert len(read_batch(body.encode()).events) == count


@pytest.mark.parametrize("body", ['[{"a":1]', '[{"a":[1]', '[{"a":{"b":1}]', '[{"a":"b]', '[{"a"]'])
def test_an_unclosed_object_is_malformed(body):
    """An object that does not end is refused. (P29)"""
    assert refusal(body).startswith(("Unexpected ", "Waiting for name-value separator"))


@pytest.mark.parametrize(
    "event",
    [
        '{"a":1,"a":2}',
        '{"a":1,"a":1}',
        '{"b":[{"a":1,"c":0,"a":2}]}',
        '{"b":{"a":1,"\\u0061":2}}',
        '{"b":"\\u003a","a":1,"a":2}',
        '{"b":"\\u003A","a":1,"a":2}',
        '{"a" : 1, "a" : 1.50}',
    ],
)
def test_a_key_occurs_once(event):
    """An object with the same key twice is refused on every level, however the key is spelled. (P30)"""
    assert refusal(f'[{{"fine":1}},{event}]') == 'Duplicate key "a"'


@pytest.mark.parametrize("number", ["9223372036854775807", "-9223372036854775808", "0", "-0", "1e30", "9e18"])
def test_numbers_that_fit(number):
    """Integers of 64 bits and finite floats keep their spelling. (P31, P105)"""
    assert texts(f'[{{"a":{number}}}]') == [f'{{"a":{number}}}']


@pytest.mark.parametrize(
    "number",
    ["9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616", "9" * 5000],
)
@pytest.mark.parametrize("around", ["{}", "[{}]", "[1, {}]", '{{"b" : -0.50, "c" : {}}}'])
def test_integers_beyond_64_bits(number, around):
    """An integer that does not fit into a signed 64-bit number is refused wherever it occurs. (P31)"""
    assert refusal(f'[{{"a":{around.format(number)}}}]').startswith(
        f"Can not use long value '{number}' cause it is too big at pos "
    )


def test_long_digits_that_are_no_integer():
    """Strings and fractions may have any number of digits. (P31)"""
    event = (
        '{"a":"18446744073709551616","b":",18446744073709551616,","c":[0.18446744073709551616,1844674407370955161.0e9]}'
    )
    assert texts(f"[{event}]") == [event]


@pytest.mark.parametrize("text", [":", "\\u003a", "\\u003A:", "\\\\u003a", "\\\\\\u003a", "\\u003a\\u003a\\\\", '\\":'])
def test_colons_in_strings_however_spelled(text):
    """Colons in strings and names, escaped or not, do not count as separators of members. (P30, P105)"""
    event = f'{{"a{text}":"{text}","b":"{text}"}}'
    assert texts(f"[{event}]") == [event]
    assert refusal(f'[{{"b":"{text}","a":1,"a":2}}]') == 'Duplicate key "a"'


def test_a_float_that_overflows():
    """A float beyond the range of doubles is refused. (P32)"""
    assert refusal('[{"a":1e999}]') == "1e999 can not be used at pos 10"


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "tru", "True", "'a'", "[1,]", '{"b":1,}', ".5", "+1", "undefined", ""]
)
def test_what_only_lenient_parsers_read(value):
    """Bare words, single quotes, trailing commas and similar mistakes are malformed. (P33)"""
    assert refusal(f'[{{"a":{value}}}]')


@pytest.mark.parametrize("event", ["{a:1}", "{'a':1}", '{"a":1,}', "{,}", '{"a"}', '{"a" 1}', "{1:1}"])
def test_names_that_only_lenient_parsers_read(event):
    """Names have to be in double quotes, and objects have to consist of members. (P33)"""
    assert refusal(f"[{event}]")


@pytest.mark.parametrize("symbol", ["\x00", "\t", "\n", "\r", "\x1f"])
def test_control_characters_in_strings(symbol):
    """A raw control character in a string is refused; an escaped one is accepted. (P34)"""
    assert refusal(f'[{{"a":"{symbol}"}}]').startswith("Illegal escape. at pos ")
    escaped = json.dumps({"a": symbol}, separators=(",", ":"))
    assert texts(f"[{escaped}]") == [escaped]


@pytest.mark.parametrize("value", ['"\\\'"', "01", "-01", "1.", "1.e3"])
def test_what_consumers_could_not_read(value):
    """Spellings that are not JSON are refused rather than passed on to consumers. (P35)"""
    assert refusal(f'[{{"a":{value}}}]')


def test_places_within_an_event_are_counted_from_its_start():
    """A position in a message about an event counts from the event's first character, including whitespace. (P36)"""
    assert refusal('[{"a":1},  {"b" :  tru}]') == "Unexpected end of data at pos 9"
    assert refusal('[{"a":"😀"},  {"b" :  "😀", "c": NaN}]') == "Unexpected symbol 'N' at pos 20"


def test_places_between_events_are_counted_from_the_start_of_the_body():
    """Text between events is reported with its position in the body, in UTF-16 units. (P36)"""
    assert refusal(' [{"a":"😀"}; {}]') == "Illegal character at position 12"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('[{"a":1]', "Unexpected symbol ']' while parsing object at pos 7"),
        ('[{"a":[1}]', "Unexpected separator '}' at pos 8"),
        ('[{"a":{"b":1]', "Unexpected symbol ']' while parsing object at pos 12"),
        ("[{]", "Unexpected symbol ']' at pos 2"),
        ('[{"a]', "Unexpected end of data at pos 4"),
        ('[{"a":tr]', "Unexpected end of data at pos 6"),
        ('[{\\"a":1}]', "Unexpected symbol '\\' at pos 2"),
        ("[{\\}]", "Unexpected symbol '\\' at pos 2"),
    ],
)
def test_an_event_that_is_not_closed(body, reason):
    """The reported text of an event without an end includes the bracket at the end of the batch. (P29)"""
    assert refusal(body) == reason


@pytest.mark.parametrize(("event", "reason"), [(b'"\xff"', "Not in UTF-8 at position 7"), (b'"\\ud800"', "Illegal")])
def test_text_that_is_no_text(event, reason):
    """Bytes that are not UTF-8, and halves of surrogate pairs, are malformed. (P22)"""
    assert refusal(b'[{"a":' + event + b"}]").startswith(reason)


@pytest.mark.parametrize("blank", ["", " "])
def test_how_deep_events_may_be(blank):
    """An event may be nested two hundred levels deep, and no deeper. (P22)"""
    deep = '[{"a":' + blank + "[" * 199 + "]" * 199 + "}]"
    assert len(read_batch(deep.encode()).events) == 1
    for levels in (200, 254, 1030, 100_000):
        too_deep = '[{"a":' + blank + "[" * levels + "]" * levels + "}]"
        assert refusal(too_deep).startswith("Nested more than 200 levels deep")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ('{"a" : "b c" ,\n\t"c": [1 , 2] }', '{"a":"b c","c":[1,2]}'),
        ('{ "z" : 1.50, "a" : 1E+2, "m" : -0 }', '{"z":1.50,"a":1E+2,"m":-0}'),
        (
            '{"a": "\\u00e9\\/\\n é", "b": "  {  \\" } ",\r\n"c":{ } }',
            '{"a":"\\u00e9\\/\\n é","b":"  {  \\" } ","c":{}}',
        ),
    ],
)
def test_events_are_kept_as_sent_less_the_blanks(sent, kept):
    """The order of keys, the spelling of numbers, and escapes stay; whitespace outside strings is removed. (P105,
    P107)"""
    assert texts(f"[{sent}]") == [kept]


def test_sizes_are_those_of_what_was_sent():
    """An event's size is the number of bytes from brace to brace, including the whitespace. (P37)"""
    sent = '{"a" : "b c" ,\n\t"c": [1 , 2] }'
    batch = read_batch(f' [ {sent} ,, {{"é":1}} ] '.encode())
    for limit, sizes in ((29, [30]), (30, []), (1, [30, 8])):
        found = [each.oversized_event_sizes(limit) for each in batch.in_pieces()]
        assert [size for each in found for size in each.values()] == sizes


def test_the_rest_of_the_batch_is_untouched_by_odd_members():
    """A bare string between events is refused, so that it can never serve as an event's metadata. (P25, P109)"""
    assert refusal('[{"a":{}}, "metadata", {"metadata":{}}]') == "Illegal character at position 11"


def test_what_is_far_too_large_is_not_explained_at_length():
    """An event that exceeds the size limit is refused without a search for the fault at its end. (P22)"""
    event = '{"a":[' + f'"{"x" * 997}",' * 1_100 + "]}"
    assert refusal(f"[{event}]") == "Unexpected end of data at pos 1000000"


JSON_VALUES = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**63), 2**63 - 1)
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(some.characters(exclude_categories=["Cs"])),
    lambda within: (
        some.lists(within, max_size=4) | some.dictionaries(some.text('ab:\\"é', max_size=3), within, max_size=4)
    ),
    max_leaves=10,
)
EVENTS = some.lists(some.dictionaries(some.text(max_size=4), JSON_VALUES, max_size=4), max_size=4)
DUMPS = some.sampled_from(
    [
        json.dumps,
        lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False),
        lambda value: json.dumps(value, indent=2),
        lambda value: json.dumps(value, separators=(" ,\t", " :\r\n")),
    ]
)


def remove_blanks(value: str) -> str:
    """The text without the whitespace outside its strings, found in a different way than the broker's."""
    inside, kept = False, []
    symbols = iter(value)
    for symbol in symbols:
        if inside or symbol not in " \t\r\n":
            kept.append(symbol)
        if inside and symbol == "\\":
            kept.append(next(symbols))
        inside ^= symbol == '"'
    return "".join(kept)


@given(EVENTS, DUMPS)
@example([{"a": 2**63 - 1, "b": -(2**63)}], json.dumps)
def test_every_batch_is_read_as_it_is(events, dumps):
    """Any events, in any spelling, are understood and stored to the letter. (P19, P105, P107)"""
    batch = read_batch(dumps(events).encode("utf-8"))
    assert list(batch.events) == json.loads(dumps(events))
    assert texts_of(batch) == [remove_blanks(dumps(event)) for event in events]


@given(some.text(alphabet='[]{},:"\\ae10.-+tn \n\x00é', max_size=30) | some.binary(max_size=30))
def test_every_body_is_read_or_refused(body):
    """For any body, the result is a batch, or the body is malformed. (P22)"""
    body = body.encode() if isinstance(body, str) else body
    for around in (b"%b", b"[%b]", b'[{"a":%b}]'):
        try:
            batch = read_batch(around % body)
        except Malformed:
            continue
        assert [json.loads(text) for text in texts_of(batch)] == list(batch.events)


def object_text(members):
    return "{" + " ,".join(f"{key}:{value}" for key, value in members) + "}"


STRINGS = some.lists(
    some.sampled_from(
        ["a", "é", ":", "\\u003a", "\\u003A", "\\\\", '\\"', "\\u0061", "{", "}", ",", "9" * 20, "\\ud83d\\ude00"]
    ),
    max_size=3,
).map(lambda parts: f'"{"".join(parts)}"')
NUMBERS = some.sampled_from(
    [
        "0",
        "-0",
        "1.50",
        "1E5",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "0.99999999999999999999",
        "1e400",
        "12345678901234567890.5",
    ]
)
TEXTS_OF_VALUES = some.recursive(
    STRINGS | NUMBERS | some.sampled_from(["true", "null"]),
    lambda within: (
        some.lists(within, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | some.lists(some.tuples(STRINGS, within), max_size=3).map(object_text)
    ),
    max_leaves=6,
)


@settings(max_examples=choose_by_suite(50, 300))
@given(some.lists(some.lists(some.tuples(STRINGS, TEXTS_OF_VALUES), max_size=4).map(object_text), max_size=3))
def test_the_fast_way_is_as_strict_as_the_slow_one(events):
    """A batch is accepted if and only if a strict parser accepts each of its events. (P30, P31, P32)"""
    try:
        expected = [strict_json.parse_strict(event) for event in events]
    except strict_json.StrictJsonError:
        assert refusal(f"[{','.join(events)}]")
    else:
        assert list(read_batch(f"[{','.join(events)}]".encode()).events) == expected


@pytest.mark.parametrize("body", ["[{},{},{},{}]", "[{} {} {}{}]", '[{"a":{}},{"a":[{}]},{},{"a":1,"a":2}]'])
def test_a_batch_has_only_so_many_events(body):
    """A batch with more events than the limit is refused, and the message contains the limit. (P40)"""
    with pytest.raises(TooLarge, match="The batch has more than 3 events"):
        read_batch(body.encode(), BatchLimits(max_events=3))
    assert len(read_batch(body.replace(',"a":2', "").encode(), BatchLimits(max_events=4)).events) == 4


@pytest.mark.parametrize(("number", "pieces"), [(1_000, 1), (8_000, 8)])
def test_ordinary_batches_are_read_in_the_fast_way(monkeypatch, number, pieces):
    """A large batch of ordinary events, with nested objects, is not searched character by character."""
    for module in (memory, validation):
        monkeypatch.setattr(module, "SHORT_BODY_BYTES", 128 * 1024)
    for module in (batches, memory, validation):
        monkeypatch.setattr(module, "MAX_BATCH_PIECE_BYTES", 1024 * 1024)
    monkeypatch.setattr(validation, "_split_strictly", lambda *_: pytest.fail("it was"))
    item = {"sku": "A-1", "amount": 2, "price": {"amount": 12.5, "currency": "EUR"}, "tags": ["a", "b"]}
    order = {"number": "x" * 36, "customer": {"id": "c" * 20}, "items": [item] * 5, "comment": "y" * 140}
    batch = read_batch(json.dumps([order] * number, separators=(",", ":")).encode())

    assert len(batch.events) == number
    assert len(list(batch.in_pieces())) == pieces


def test_events_can_be_gone_through_again_and_looked_up(read_whole_or_in_pieces):
    """The events of a batch can be iterated any number of times, and accessed by index."""
    events = [{"number": number, "text": "x" * number} for number in range(20)]
    batch = read_batch(json.dumps(events).encode())

    assert list(batch.events) == list(batch.events) == events
    assert (batch.events[7], batch.events[-1], batch.events[3:5]) == (events[7], events[19], events[3:5])
    assert (len(list(batch.in_pieces())) > 1) == (read_whole_or_in_pieces == "in pieces")


def test_a_long_batch_leaves_nothing_behind(read_whole_or_in_pieces):
    """A long batch frees its memory when it is no longer used, without a garbage collection."""
    if read_whole_or_in_pieces == "at once":
        return
    batch = read_batch(b'[{"a":1},{"b":"' + b"x" * 100 + b'"}]')
    held = weakref.ref(batch)
    assert len(batch.events) == 2
    del batch
    assert held() is None


@pytest.mark.parametrize(
    "value", ["[" + "{}," * 90_000 + "{}]", "[" + "[]," * 190_000 + "[]]", '{"a":' * 150 + "1" + "}" * 150]
)
def test_an_event_has_only_so_many_values(value):
    """An event that would take dozens of times its size in memory is refused; all others are reported as aborted.
    (P40)"""
    body = f'[{{}},{{"a":[{",".join([value] * (1 + 900_000 // len(value)))}]}}]'.encode()
    with pytest.raises(TooLarge, match="The event at index 1 has too many values within it"):
        read_batch(body)


def test_symbols_in_texts_are_no_values():
    """A string may have as many commas and braces as fit into an event. (P105)"""
    event = json.dumps({"csv": "1,2,{[" * 150_000}, separators=(",", ":"))
    assert texts(f"[{event}]") == [event]


def test_what_is_many_times_too_large_is_not_parsed():
    """An event that is several times as large as allowed is refused with its size, as soon as its end is found.
    (P38)"""
    with pytest.raises(TooLarge, match="Event too large: 4500008 bytes, max size is 999000 bytes"):
        read_batch(b'[{"a":"' + b"x" * 4_500_000 + b'"}]')


def test_a_body_that_is_cut_by_hand_has_only_so_many_objects(monkeypatch):
    """If events have to be found one by one, the number of objects in the body is limited, because the search takes
    long. (P40)
    """
    monkeypatch.setattr(validation, "_MAX_OBJECTS", 6)
    assert len(read_batch(b'[{"a":{}} {"a":{}} {"a":{}}]').events) == 3
    with pytest.raises(TooLarge, match="more than 6 objects"):
        read_batch(b'[{"a":{}} {"a":{}} {"a":{}} {}]')


@pytest.mark.parametrize("length", [14, 15, 16, 17, 24])
def test_a_character_that_is_cut_off_at_the_end(length, monkeypatch):
    """The last bytes of a body must be whole characters, even where a piece of the body ends with them. (P19)"""
    monkeypatch.setattr(validation, "MAX_BATCH_PIECE_BYTES", 8)
    body = b'[{"a":"' + b"x" * (length - 8) + "é".encode()[:1]
    assert len(body) == length
    with pytest.raises(Malformed) as caught:
        read_batch(body)
    assert caught.value.detail == f"Error occurred when parsing event(s). Not in UTF-8 at position {length - 1}"
