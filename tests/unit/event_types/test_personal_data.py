"""Which members of events are personal data."""

import pytest

from nakadi.event_types.personal_data import personal_data_paths
from nakadi.event_types.table_retention import check_data_lake_annotations
from nakadi.model.outcomes import Invalid

ANNOTATION = "nakadi.io/personal-data"


def test_paths_are_separated_by_commas():
    """The annotation has paths separated by commas; each path is returned once. (T10)"""
    assert personal_data_paths({ANNOTATION: "customer.email,  customer.id , customer.email"}) == (
        "customer.email",
        "customer.id",
    )
    assert personal_data_paths({ANNOTATION: None}) == personal_data_paths({}) == ()


@pytest.mark.parametrize(("text", "wrong"), [("", ""), ("a,,b", ""), ("a, b c", "b c"), ("a..b", "a..b"), (".a", ".a")])
def test_what_is_no_path_is_refused(text, wrong):
    """The message names the invalid path. (T10)"""
    with pytest.raises(Invalid) as refused:
        check_data_lake_annotations({ANNOTATION: text})
    assert refused.value.detail.startswith(f'Annotation {ANNOTATION} is not valid: "{wrong}" is not the path of a')
