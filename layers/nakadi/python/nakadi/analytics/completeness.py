"""How many members of an event its columns tell, as a question to Spark.

An event's text has as many names as it has members, or more if texts in it look like names. So when the columns tell
as many members as the text has names, they tell all of it; if not, the text has to be kept.
"""

from __future__ import annotations

from nakadi.analytics.columns import Array, Field, Json, Kind, Scalar, Struct, Texts


def names_in(text: str) -> str:
    """At least as many as there are members."""
    return f"((octet_length({text}) - octet_length(replace({text}, '\":', ''))) div 2)"


def told_by(value: str, kind: Struct) -> str:
    """The members that a value of this type tells, those of its members included."""
    return _inside(value, kind, 0)


def _told(value: str, field: Field, depth: int) -> str:
    if field.contested:
        return "0"
    if _is_plain(field.kind):
        return f"cast({value} is not null as int)"
    return f"if({value} is null, 0, 1 + {_inside(value, field.kind, depth)})"


def _is_plain(kind: Kind) -> bool:
    return isinstance(kind, Scalar) or (isinstance(kind, Array) and _is_plain(kind.of))


def _inside(value: str, kind: Kind, depth: int) -> str:
    match kind:
        case Struct(fields):
            told = [_told(f"{value}.`{field.name}`", field, depth) for field in fields]
            return "(" + " + ".join(told or ["0"]) + ")"
        case Texts():
            return f"coalesce(size({value}), 0)"
        case Json():
            return _inside_json(value)
        case Array(element) if not _is_plain(element):
            each = f"each{depth}"
            inside = _inside(each, element, depth + 1)
            return f"aggregate({value}, 0, (sum{depth}, {each}) -> sum{depth} + cast({inside} as int))"
    return "0"


def _inside_json(value: str) -> str:
    """At most as many as there are. A text that is no object and no array was something else when it was written."""
    certain = f"({names_in(value)} - (octet_length({value}) - octet_length(replace({value}, '\\\\\":', ''))) div 3)"
    return f"coalesce(if(substring({value}, 1, 1) in ('{{', '['), {certain}, -1), 0)"
