import pytest

from nakadi.http.routes.publishing import subscription_id_in_header
from nakadi.model.outcomes import Invalid

ID = "0e1e5b3a-7c55-4d6b-9a2c-6d2b8f3f1c11"


@pytest.mark.parametrize(
    "header",
    [
        f"CONSUMER_SUBSCRIPTION_ID={ID}",
        f"consumer_Subscription_id = {ID}",
        f" CONSUMER_ SUBSCRIPTION_ID\t={ID} ",
        f"CONSUMER_SUBSCRIPTION_ID={ID.upper()}",
        f"CONSUMER_SUBSCRIPTION_ID={ID},",
    ],
)
def test_a_batch_can_be_for_one_subscription(header):
    """The tag names a subscription; whitespace and the case of the header's name do not matter. (P125)"""
    assert subscription_id_in_header(header) == ID


@pytest.mark.parametrize(
    ("header", "detail"),
    [
        ("", "X-CONSUMER-TAG: is empty!"),
        (" \t ", "X-CONSUMER-TAG: is empty!"),
        ("CONSUMER_SUBSCRIPTION_ID", "header tag parameter is imbalanced, expected: 2 but provided 1"),
        ("CONSUMER_SUBSCRIPTION_ID=", "header tag parameter is imbalanced, expected: 2 but provided 1"),
        (f"CONSUMER_SUBSCRIPTION_ID={ID}=x", "header tag parameter is imbalanced, expected: 2 but provided 1"),
        (f"CONSUMER_SUBSCRIPTION_ID={ID},,x", "header tag parameter is imbalanced, expected: 2 but provided 3"),
        (",", "header tag parameter is imbalanced, expected: 2 but provided 1"),
        ("other=1", "invalid header tag: other"),
        (f"=x,CONSUMER_SUBSCRIPTION_ID={ID}", "invalid header tag: "),
        (
            f"CONSUMER_SUBSCRIPTION_ID={ID},consumer_subscription_id={ID}",
            "duplicate header tag: CONSUMER_SUBSCRIPTION_ID",
        ),
        ("CONSUMER_SUBSCRIPTION_ID=1-2-3", "header tag value: 1-2-3 is not an UUID"),
        ("DEBUG_PUBLISHER_TOPIC_ID=x", "header tag unsupported: DEBUG_PUBLISHER_TOPIC_ID"),
        ("debug_publisher_topic_id=x", "header tag unsupported: debug_publisher_topic_id"),
    ],
)
def test_tags_that_make_no_sense(header, detail):
    """Each mistake in the header has its own message. (P126)"""
    with pytest.raises(Invalid) as caught:
        subscription_id_in_header(header)
    assert caught.value.detail == detail
