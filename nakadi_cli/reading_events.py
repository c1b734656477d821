"""Reads events from files, which contain an array, or one event on each line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nakadi_cli.failures import BadInput

_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Event:
    """An event with its text, so that no number loses a digit; `number` counts from 1."""

    number: int
    text: bytes


@contextmanager
def open_input(file: str) -> Iterator[TextIO]:
    """Open a file to read; `-` is standard input."""
    if file == "-":
        yield sys.stdin
        return
    try:
        stream = Path(file).open(encoding="utf-8")  # noqa: SIM115  # it is closed below
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.") from error
    with stream:
        yield stream


@contextmanager
def keep_refused(file: str | None, read_from: str) -> Iterator[Callable[[Iterable[Event]], None]]:
    """Open a file to write events into, one on each line; without a file, drop them."""
    if file is None:
        yield lambda _events: None
        return
    if read_from != "-" and Path(file).resolve() == Path(read_from).resolve():
        raise BadInput(f"{file} is the input, and cannot be the output at the same time.")
    try:
        stream = Path(file).open("wb")  # noqa: SIM115  # it is closed below
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}.") from error
    with stream:
        yield lambda events: stream.writelines(_line(event) for event in events)


def read_events(stream: TextIO, file: str) -> Iterator[Event]:
    """Read events as they come, one from each line; an array is read as a whole."""
    lines = iter(stream)
    number = 0
    try:
        for line_number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if number == 0 and line.lstrip().startswith("["):
                yield from _read_array("".join([line, *lines]), file)
                return
            number += 1
            try:
                parsed = json.loads(line)
            except ValueError:
                raise BadInput(f"{file}, line {line_number}: this is not JSON; each line must be one event.") from None
            except RecursionError:
                raise BadInput(f"{file}, line {line_number}: the event is nested too deeply.") from None
            if not isinstance(parsed, dict):
                raise BadInput(f"{file}, line {line_number}: an event must be an object.")
            yield Event(number, line.strip().encode())
    except UnicodeDecodeError:
        raise BadInput(f"{file} is not text in UTF-8.") from None


def batches(events: Iterable[Event], most_events: int, most_bytes: int) -> Iterator[list[Event]]:
    """Divide events into batches, each within both limits, unless it contains a single event."""
    batch: list[Event] = []
    size = 0
    for event in events:
        if batch and (len(batch) == most_events or size + len(event.text) > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += len(event.text) + 1
    if batch:
        yield batch


def _line(event: Event) -> bytes:
    """Write an event into one line. Its line breaks are between its values, because JSON strings contain none."""
    return event.text.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def _read_array(text: str, file: str) -> Iterator[Event]:
    place, number = text.index("[") + 1, 0
    while True:
        place = _after_space(text, place)
        if number == 0 and text[place : place + 1] == "]":
            break
        number += 1
        try:
            parsed, end = _DECODER.raw_decode(text, place)
        except ValueError:
            raise BadInput(f"{file}: event {number} of the array is not JSON.") from None
        except RecursionError:
            raise BadInput(f"{file}: event {number} of the array is nested too deeply.") from None
        if not isinstance(parsed, dict):
            raise BadInput(f"{file}: event {number} of the array is not an object.")
        yield Event(number, text[place:end].encode())
        place = _after_space(text, end)
        if text[place : place + 1] == "]":
            break
        if text[place : place + 1] != ",":
            raise BadInput(f"{file}: a comma or the end of the array is missing after event {number}.")
        place += 1
    if text[place + 1 :].strip():
        raise BadInput(f"{file}: something follows the array.")


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place
