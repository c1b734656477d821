"""The outcome of a batch of records, by the rules of an event source mapping."""

import pytest

from infra.laptop.batches import Batch, MappingRules, Plan, Record, drop_expired, plan_after_answer, plan_after_failure

USUAL = {
    "BatchSize": 500,
    "BisectBatchOnFunctionError": True,
    "MaximumRetryAttempts": 2,
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
    "DestinationConfig": {"OnFailure": {"Destination": "arn:aws:sqs:eu-central-1:1:aside"}},
}
RULES = MappingRules.of(USUAL)


def records(*numbers):
    return tuple(Record(str(number), "key", b"", float(number)) for number in numbers)


def failure_report(*numbers):
    return {"batchItemFailures": [{"itemIdentifier": str(number)} for number in numbers]}


@pytest.mark.parametrize("answer", [None, {}, {"batchItemFailures": []}, {"batchItemFailures": None}, "fine"])
def test_a_good_answer_is_the_end_of_a_batch(answer):
    """A batch without failures leads to no other invocation."""
    assert plan_after_answer(Batch(records(1, 2)), answer, RULES) == Plan()


def test_what_lies_before_the_first_failure_is_done():
    """If several records fail, the first one in the batch counts, in whatever order they are reported."""
    batch = Batch(records(1, 2, 3, 4), failures=2)
    assert plan_after_answer(batch, failure_report(4, 3), RULES) == Plan((Batch(records(3, 4)),))


def test_failures_are_only_heard_of_where_they_are_reported():
    """If the mapping does not ask for the failures of single records, any answer counts as a success."""
    rules = MappingRules.of({**USUAL, "FunctionResponseTypes": []})
    assert plan_after_answer(Batch(records(1, 2)), failure_report(1), rules) == Plan()


def test_a_failure_that_is_not_in_the_batch_fails_all_of_it():
    """If a function reports a failure of a record that is not in the batch, this counts as an error of the function."""
    assert plan_after_answer(Batch(records(1, 2)), failure_report(7), RULES) == Plan(
        (Batch(records(1)), Batch(records(2)))
    )


def test_an_error_splits_a_batch():
    """After an error, the halves of a batch come in their order, and splitting does not count as another attempt."""
    batch = Batch(records(1, 2, 3), failures=1)
    assert plan_after_failure(batch, RULES) == Plan((Batch(records(1), 1), Batch(records(2, 3), 1)))


def test_a_single_record_is_tried_as_often_as_it_may_be():
    """A single record is set aside after its last attempt."""
    batch = Batch(records(1))
    for attempt in (1, 2):
        assert plan_after_failure(batch, RULES) == Plan((Batch(records(1), attempt),))
        batch = Batch(records(1), attempt)
    assert plan_after_failure(batch, RULES) == Plan(abandoned=Batch(records(1), 3))


def test_where_nothing_is_split_the_whole_batch_is_set_aside():
    """If batches are not split, the whole batch is set aside after its last attempt."""
    rules = MappingRules.of({**USUAL, "BisectBatchOnFunctionError": False, "MaximumRetryAttempts": 0})
    assert plan_after_failure(Batch(records(1, 2)), rules) == Plan(abandoned=Batch(records(1, 2), 1))


def test_without_a_limit_nothing_is_ever_set_aside():
    """Without a limit, the mapping retries until the stream drops the records."""
    rules = MappingRules.of({})
    assert plan_after_failure(Batch(records(1), 9999), rules) == Plan((Batch(records(1), 10_000),))


def test_old_records_are_set_aside():
    """A record beyond its maximum age is not retried, but later ones are."""
    rules = MappingRules.of({**USUAL, "MaximumRecordAgeInSeconds": 60})
    due = drop_expired(Batch(records(10, 50)), rules, now=100.0)
    assert due == Plan((Batch(records(50)),), Batch(records(10)))
    assert drop_expired(Batch(records(10, 50)), RULES, now=1e9) == Plan((Batch(records(10, 50)),))
