"""Cuts the members that are read out of the text of events.

What is kept is copied as it was written; only the names of the cut objects are written again. msgspec passes over the
rest without making values of it. Lists are transparent, as in paths: each item is cut. Where a path goes on and the
event has neither an object nor a list, the result has null, since that value is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from nakadi.schemas.read_paths import ReadPath

_NULL = Raw(b"null")

_split_list = msgspec.json.Decoder(list[Raw]).decode
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode

_Members = Any
"""The wanted members of an object, by their keys."""


class Projection:
    """Keeps the members at these paths, each with all that is in it. Of members with the same name, the last counts."""

    def __init__(self, paths: Iterable[ReadPath]) -> None:
        rests: dict[str, list[ReadPath]] = {}
        for name, *rest in paths:
            rests.setdefault(name, []).append(tuple(rest))
        self._keys = {name: f"member_{number}" for number, name in enumerate(rests)}
        self._get: Callable[[_Members, str], Any] = getattr
        self._set: Callable[[_Members, str, Any], None] = setattr
        try:
            self._decode = _struct_decoder(self._keys)
        except ValueError:
            # A Struct has no members whose names are written with escapes.
            self._keys = {name: name for name in rests}
            self._get, self._set = _get_or_unset, dict.__setitem__
            self._decode = _dict_decoder(frozenset(rests))
        self._inner = [(self._keys[name], Projection(rest)) for name, rest in rests.items() if () not in rest]

    def cut(self, event: bytes) -> bytes:
        """The text of an event with nothing but what is read. What is no JSON, or nested too deep, becomes null."""
        try:
            if event[:1] == b"{":
                # The common case: `cut_value` would do the same.
                return _encode(self._cut_object(event))
            return _encode(self.cut_value(Raw(event.lstrip())))
        except (msgspec.DecodeError, RecursionError):
            return b"null"

    def cut_value(self, value: Raw) -> Any:
        match bytes(memoryview(value)[:1]):
            case b"{":
                return self._cut_object(value)
            case b"[":
                return [self.cut_value(each) for each in _split_list(value)]
            case _:
                return _NULL

    def _cut_object(self, value: bytes | Raw) -> _Members:
        members = self._decode(value)
        for key, projection in self._inner:
            inner = self._get(members, key)
            if inner is not UNSET:
                self._set(members, key, projection.cut_value(inner))
        return members


def _struct_decoder(keys: Mapping[str, str]) -> Callable[[bytes | Raw], _Members]:
    """Raises `ValueError` if a name cannot be a member of a Struct."""
    fields = [(key, Raw | UnsetType, UNSET) for key in keys.values()]
    names = {key: name for name, key in keys.items()}
    members: Any = msgspec.defstruct("Members", fields, rename=names, gc=False)
    return msgspec.json.Decoder(members).decode


def _dict_decoder(names: frozenset[str]) -> Callable[[bytes | Raw], _Members]:
    return lambda text: {name: value for name, value in _split_object(text).items() if name in names}


def _get_or_unset(members: Mapping[str, Any], name: str) -> Any:
    return members.get(name, UNSET)
