"""Validators in use are cached for the next batch."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from nakadi.event_types.effective_schemas import effective_schema_of
from nakadi.model.event_type import Category, CleanupPolicy, CompatibilityMode, Version
from nakadi.model.outcomes import Invalid
from nakadi.publishing.publisher import ValidatorCache
from tests.support.builders import a_schema, an_event_type
from tests.support.publishing import a_business_type


def test_validators_are_made_once():
    """However many requests need a validator at the same time, the validator is compiled once. (P56)"""
    event_type, asked, together = an_event_type(), [], threading.Barrier(8)
    validators = ValidatorCache()

    def ask(_):
        together.wait()
        return validators.get_or_compile(event_type, lambda: asked.append(1) or {})

    with ThreadPoolExecutor(8) as threads:
        made = set(threads.map(ask, range(8)))
    assert len(made) == len(asked) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "another"},
        {"schema": a_schema(version=Version(1, 1, 0))},
        {"category": Category.BUSINESS},
        {"compatibility_mode": CompatibilityMode.NONE},
        {"cleanup_policy": CleanupPolicy.COMPACT},
    ],
)
def test_validators_of_different_types(changes):
    """A validator is cached for each combination of the properties that change the effective schema. (P56)"""
    validators, kept = ValidatorCache(), {"id": "one", "name": "order"}
    schema = partial(effective_schema_of, a_business_type())
    first = validators.get_or_compile(an_event_type(**kept), schema)

    assert validators.get_or_compile(an_event_type(**kept), schema) is first
    assert validators.get_or_compile(an_event_type(**(kept | changes)), schema) is not first


def test_validators_that_were_not_asked_for_longest_go():
    """The cache keeps a limited number of validators, including those in use."""
    validators = ValidatorCache(max_validators=2)
    one, two, three = (an_event_type() for _ in range(3))
    first = validators.get_or_compile(one, dict)
    second = validators.get_or_compile(two, dict)
    assert validators.get_or_compile(one, dict) is first
    validators.get_or_compile(three, dict)

    assert validators.get_or_compile(one, dict) is first
    assert validators.get_or_compile(two, dict) is not second


def test_validators_that_could_not_be_made():
    """If compiling a validator fails, the next request tries again."""
    validators, event_type = ValidatorCache(), an_event_type()
    with pytest.raises(Invalid):
        validators.get_or_compile(event_type, lambda: {"type": "foo"})

    assert validators.get_or_compile(event_type, dict).accepts(1)
